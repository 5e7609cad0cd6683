"""A model scored on the hospital's test patients: counts leave, scores of single patients stay."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from evaluation.histograms import count, to_tensors
from federation.parameters import loaded
from pipelines.site.hospital import COHORT, Done, Hospital, read_cohort_file
from pipelines.site.learn import door, opened, opening, own_model
from pipelines.site.ready import make_ready
from pipelines.store import DiskFolder
from privacy.events import composed, describe
from privacy.message import Call, Json, Message, to_bytes


def evaluate(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Score a model on the test split.

    The message's facts: `label`, `train_run`, `checkpoint`, `best` choose this hospital's own model; with tensors,
    those are the model (of another site, or of the central baseline, whose `opening` comes along). `copies`: how many
    bootstrap copies; their seed never leaves this hospital.

    Returns:
        Histograms and confusion counts with their bootstrap copies (see `evaluation.histograms`), and the model's
        round.
    """
    facts = message.facts
    said = facts.get("opening")
    start = (
        opening(hospital, {**said, "cohort": facts["cohort"]})
        if isinstance(said, dict)
        else opened(hospital, str(facts["train_run"]))
    )
    round_, params = (None, message.tensors) if message.tensors else own_model(hospital, facts)
    module = loaded(start.algorithm.network(start.task), params)
    cohort = read_cohort_file(hospital.cohort_folder(str(facts["cohort"])) / COHORT)
    access = door(cohort, start.work, 0, hospital.device)
    rows = access.rows("test")
    probabilities = start.task.probabilities(module.to(hospital.device), rows.x).cpu()
    # A network that gives no number decides nothing; failing here instead would tell one bit about a patient.
    probabilities = probabilities.nan_to_num(nan=1.0 / start.task.classes)
    counts = count(
        rows.y.cpu().numpy(),
        probabilities.numpy(),
        rows.patient.cpu().numpy(),
        copies=int(str(facts["copies"])),
        seed=hospital.bootstrap_seed(),
        site=hospital.name,
    )
    if not message.tensors:
        _keep(hospital, scores_name(facts), rows.y, probabilities, rows.patient)
        origin = {"run": str(facts["train_run"]), "checkpoint": facts["checkpoint"], "round": round_}
        make_ready(hospital, str(facts["label"]), start, params, cohort, origin)
    return Done(Message(to_tensors(counts), {"round": round_}), describe(composed(access.events)))


def scores_name(facts: Mapping[str, Json]) -> str:
    """The file of a model's scores at home: of a run, a checkpoint and the globally best round."""
    return f"{str(facts['train_run']).rpartition('/')[2]}.{facts['checkpoint']}.{facts['best']}.safetensors"


def _keep(hospital: Hospital, name: str, y: Tensor, probabilities: Tensor, patient: Tensor) -> None:
    """The hospital's own copy, for its page."""
    scores = Message({"y": y, "probabilities": probabilities, "patient": patient})
    DiskFolder(hospital.root / "scores").write(name, to_bytes(scores))
