"""What a test patient's score hangs on, as a law over the real worker: the model, and training patients where a variant
is fitted to the hospital, but no other test patient. Two hospitals differ in test patients alone; those whom both have
get the same scores.
"""

from __future__ import annotations

import pytest
import torch
from pydantic import TypeAdapter

from federation.models.cnn import Cnn
from federation.task import Task
from pipelines.hospital import scoring as score
from pipelines.loader.validation import to_plain
from pipelines.runs.store import DiskFolder
from pipelines.settings.variants import Variant
from privacy.message import from_bytes
from small_site import SIDE, ask, hospital

TASK = Task(Cnn(widths=(8, 8), norm="batch"), (1, SIDE, SIDE), 2)
WAYS = {
    "as it is": None,
    "centred": {"calibration": "centred"},
    "centred by prevalence": {"calibration": "centred", "quantile": "prevalence"},
    "adabn": {"calibration": "adabn"},
    "both": {"calibration": "adabn_centred"},
    "fine-tuned": {"calibration": "fine_tuned", "tuning": {"epochs": 1}},
}
TEST = [number for number in range(24) if number % 3 == 2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same hospital with all test patients, and without three of them, each after a round of training."""
    found = []
    torch.manual_seed(0)
    model = {f"model/{name}": value for name, value in TASK.network().state_dict().items()}
    for number, without in enumerate(((), tuple(TEST[:3]))):
        own, cohort = hospital(tmp_path_factory.mktemp(f"scored-{number}"), without=without)
        work = {"optimizer": "sgd", "lr": 0.05, "batch": 4, "epochs": 1}
        said = {
            "label": "mine",
            "algorithm": {"name": "fedavg"},
            "model": to_plain(TASK.model),
            "seed": 0,
            "work": work,
        }
        said |= {
            "inputs": [1, SIDE, SIDE],
            "classes": 2,
            "cohort": cohort,
            "privacy": None,
            "evaluation_noise": 0.0,
            "seed": 0,
        }
        ask(own, "introduce", **said)
        ask(own, "train", 1, model, algorithm={}, best=None)
        ask(own, "finish", 2, model, algorithm={}, best=None)
        found.append((own, cohort))
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_test_patients_score_hangs_on_no_other_test_patient(trained, way, request):
    scores = []
    for own, cohort in trained:
        facts = {"train_run": "r/one", "label": "mine", "checkpoint": "latest", "best": None, "copies": 2}
        variant = None if way is None else TypeAdapter(Variant).validate_python({"of": "mine", **way})
        facts |= {} if variant is None else {"calibration": {"of": "mine", **way}, "variant": "fitted"}
        ask(own, "evaluate", run=f"r/{request.node.callspec.id.replace(' ', '-')}", cohort=cohort, **facts)
        home = from_bytes(
            DiskFolder(own.root / "scores").read(score.scores_name("r/one", "latest", None, variant))
        ).tensors
        scores.append(dict(zip(home["patient"].tolist(), home["probabilities"].tolist(), strict=True)))
    assert sorted(scores[0]) == TEST and sorted(scores[1]) == TEST[3:]
    for patient in TEST[3:]:
        assert scores[1][patient] == pytest.approx(scores[0][patient], abs=1e-5)
