"""Consilium from Python: hospitals' own arrays, one's own network or method, and the results as plain objects.

    from consilium import Examples, train

    hospitals = {"north": Examples(x, y, patient), "south": Examples(...)}
    results = train(hospitals, model="mlp", method="fenda", rounds=10, folder="out")
    print(results)

`train` writes settings and runs the stages that `python -m pipelines.run` runs, so that gate, ledger, exactly-once and
resuming are those of every run; `run` is that command as a function. What does not hold is in `Results.not_guaranteed`.
"""

from consilium.errors import RunFailed
from consilium.examples import Examples
from consilium.far import Flare
from consilium.registering import own, register
from consilium.results import Difference, Results, Round, Score, Statement
from consilium.running import run, train
from consilium.sweeping import Sweep, sweep
from federation.descent import Work
from federation.models.adapters import add_adapters
from federation.weights import Weights
from pipelines.coordinator.world import RoundEnded
from pipelines.loader.document import ConfigError
from pipelines.runs.stopping import Stopped
from pipelines.settings.learning import Split
from pipelines.settings.privacy import PatientLevel
from privacy.release.policy import Policy

__all__ = [
    "ConfigError",
    "Difference",
    "Examples",
    "Flare",
    "PatientLevel",
    "Policy",
    "Results",
    "Round",
    "RoundEnded",
    "RunFailed",
    "Score",
    "Split",
    "Statement",
    "Stopped",
    "Sweep",
    "Weights",
    "Work",
    "add_adapters",
    "own",
    "register",
    "run",
    "sweep",
    "train",
]
