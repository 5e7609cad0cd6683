"""Which finished models this hospital holds as files, and their losses on its own validation patients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evaluation.records import Model
from federation.conversation import load_newest_intact_memory
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.opening import read_opening
from pipelines.loader.names import is_name
from pipelines.models.file import COMPLETE, READY, ended_in
from pipelines.requests.methods import Method, TableLine, Variant
from privacy.message import Json, Malformed, from_bytes, losses_of, unseal_parts
from privacy.release import ledger as ledgers
from privacy.release.gate import BUDGET, Refused


def list_usable_models(hospital: Hospital, methods: Sequence[Method], variants: Sequence[Variant]) -> tuple[Model, ...]:
    """The models of a run's tables. Variants have no validation loss."""
    return (
        *(_build_model(hospital, method, _validation_loss(hospital, method)) for method in methods),
        *(_build_model(hospital, variant, math.nan) for variant in variants),
    )


def _build_model(hospital: Hospital, line: TableLine, loss: float) -> Model:
    """A line's model with its file, its loss and how its training ended."""
    ended = ended_in(training_history(hospital, line["train_run"], line.get("rounds")))
    return Model(hospital.name, line["label"], loss, _model_path(hospital, line), ended)


def training_history(hospital: Hospital, run: str, rounds: int | None) -> dict[str, Json]:
    """How a training went here, by the ledger: `rounds_trained`, of how many `rounds` (None = nobody said), and how it
    `ended`: `whole`, or with the code with which this hospital left.
    """
    lines = [
        line for line in ledgers.read_lines(hospital.ledger) if (line.get("run"), line.get("request")) == (run, "train")
    ]
    trained = {str(line["round"]) for line in lines if line.get("refused") is None}
    spent = any(line.get("refused") == BUDGET for line in lines)
    return {"rounds_trained": len(trained), "rounds": rounds, "ended": BUDGET if spent else COMPLETE}


def has_noised_scores(hospital: Hospital, methods: Sequence[TableLine]) -> bool:
    """Whether this hospital's scores leave with noise, by the settings that it got when a method began."""
    for method in methods:
        try:
            if read_opening(hospital, method["train_run"]).protection is not None:
                return True
        except (Refused, Malformed):
            continue  # the central baseline is trained at the pooled site
    return False


def _validation_loss(hospital: Hospital, method: TableLine) -> float:
    """Validation loss of a checkpoint's model; NaN if it was not scored on validation patients."""
    finite = losses_of(load_newest_intact_memory(hospital.conversation(method["train_run"])).facts)
    if not finite or method["checkpoint"] == "average":  # no round's model: its loss was not measured
        return math.nan
    if method["checkpoint"] == "local":
        return min(finite.values())
    number = (method["best"] or 0) if method["checkpoint"] == "global" else max(finite)
    return finite.get(number, math.nan)


def _model_path(hospital: Hospital, method: TableLine) -> str:
    """Path of this run's model file; empty if there is none, or one of another run."""
    label = method["label"]
    path = hospital.root / READY / f"{label}.safetensors"
    if not is_name(label) or not path.is_file():  # labels come from the coordinator and become file names
        return ""
    try:
        facts = from_bytes(unseal_parts(path.read_bytes())).facts
    except (Malformed, ValueError, OSError):
        return ""  # damaged, so it cannot be recommended
    return str(path) if facts.get("run") == method["train_run"] else ""
