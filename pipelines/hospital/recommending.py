"""Which of its models this hospital should use, from scores of its validation patients, which stay here.

`compare` tells the gains that the hospital measured over its own model, for the other hospitals' recommendations,
where nothing is promised; a private run never asks, and each hospital then recommends from its own patients alone, on
its own page, and says nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from evaluation.histograms import Floats
from evaluation.recommendation import Gain, Heard, Measured, Recommendation, Sums, Validated, measured, recommended
from evaluation.records import Model
from federation.alone import Alone
from federation.local import Local
from personalize import AnyAlgorithm
from personalize.dp_head import DpHead
from personalize.moments import Moments
from pipelines.hospital.finished_models import noised, usable
from pipelines.hospital.home_floors import HomeFloor
from pipelines.hospital.hospital import Done, Hospital
from pipelines.hospital.kept import scores_name
from pipelines.hospital.opening import opened
from pipelines.hospital.validation_scores import VALIDATED
from pipelines.models.recommended import RECOMMENDED, to_bytes
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, NOTHING, describe
from privacy.message import Call, Json, Malformed, Message, as_list, as_mapping, from_bytes, whole_of
from privacy.release.gate import Refused

LARGEST = 2.0**64  # of numbers that others measured


def compare(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Gains over the hospital's own model on validation patients, by label: facts `gains`, value and variance of each.

    Facts: `methods` and `variants`, as in `report`. Empty where anything is promised to patients, or nothing could be
    measured.
    """
    if _promised(hospital, message.facts):
        return Done(Message(), describe(NOTHING))
    found = _measured(hospital, message.facts, usable(hospital, message.facts), ())
    said: dict[str, Json] = {
        label: [gain.value, gain.variance] for label, gain in found.gains.items() if math.isfinite(gain.variance)
    }
    return Done(Message({}, {"gains": said}), describe(NON_PRIVATE))


def recommendation(
    hospital: Hospital,
    facts: Mapping[str, Json],
    models: Sequence[Model],
    floors: Sequence[HomeFloor],
    losses: Mapping[str, str],
) -> Recommendation | None:
    """This hospital's recommendation, which is also written into its folder; None, and no file, if there is none.

    Args:
        facts: of `report`; `others` are sums of gains that other hospitals measured, as `others_to_facts` has them.
        models: which of the run's models are files here; floors: learnt at home. losses: a method's epsilon here, by
        run of its training.
    """
    folder, found = DiskFolder(hospital.root), None
    others = _others(as_mapping(facts.get("others")))
    if not facts.get("structures"):
        found = recommended(hospital.name, _measured(hospital, facts, models, floors), others)
    if found is None:
        folder.remove(RECOMMENDED)
        return None
    runs = {str(one["label"]): str(one["train_run"]) for one in _lines(facts)}
    run = runs.get(found.method, "")  # a floor of this hospital's own is of no run
    found = replace(found, epsilon=losses.get(run, ""))
    files = [model.file for model in (*models, *(floor.model for floor in floors)) if model.method == found.method]
    folder.write(RECOMMENDED, to_bytes({**to_facts(found), "run": run}, Path(files[0])))
    return found


def told(hospital: Hospital, facts: Mapping[str, Json], found: Recommendation | None) -> Json:
    """What the coordinator hears of a recommendation; None where anything is promised to patients."""
    return None if found is None or _promised(hospital, facts) else to_facts(found)


def to_facts(found: Recommendation) -> dict[str, Json]:
    """A recommendation as facts."""
    return dict(asdict(found))


def from_facts(said: Mapping[str, Json]) -> Recommendation:
    """The recommendation that facts hold. Raises: ValueError: they hold none."""
    return TypeAdapter(Recommendation).validate_python(said)


def _promised(hospital: Hospital, facts: Mapping[str, Json]) -> bool:
    return hospital.policy.promises or noised(hospital, [as_mapping(one) for one in as_list(facts["methods"])])


def _lines(facts: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    return [as_mapping(one) for name in ("methods", "variants") for one in as_list(facts.get(name, []))]


def _measured(
    hospital: Hospital, facts: Mapping[str, Json], models: Sequence[Model], floors: Sequence[HomeFloor]
) -> Measured:
    folder, filed = DiskFolder(hospital.root / "scores"), {model.method for model in models if model.file}
    held, own = {floor.model.method: floor.scores for floor in floors}, [floor.model.method for floor in floors]
    for line in _lines(facts):
        label, name = str(line["label"]), scores_name(line)
        if label in filed and folder.has(name):
            held[label] = from_bytes(folder.read(name)).tensors
            own += [label] if _learnt_alone(hospital, str(line["train_run"])) else []
    rows, scores = dict[str, Tensor](), dict[str, Floats]()
    for label, kept in held.items():
        here = {part: kept.get(f"{VALIDATED}{part}", torch.zeros(0)) for part in ("y", "patient")}
        rows = rows or (here if len(here["y"]) else {})
        # Others were scored on other patients, as those whose images another space keeps.
        if rows and all(tensor.equal(here[part]) for part, tensor in rows.items()):
            scores[label] = kept[f"{VALIDATED}probabilities"].double().numpy()
    if not rows:
        return Measured("", {})
    found = Validated(rows["y"].numpy(), rows["patient"].numpy(), scores)
    return measured(found, own, seed=hospital.bootstrap_seed())


def _learnt_alone(hospital: Hospital, run: str) -> bool:
    try:
        return alone(opened(hospital, run).algorithm)
    except (Refused, Malformed):
        return False


def alone(algorithm: AnyAlgorithm) -> bool:
    """Whether no other hospital has a part in a method's models."""
    if isinstance(algorithm, Moments):
        return algorithm.others_gram == 0 and algorithm.others_classes == 0
    return isinstance(algorithm, Alone | Local) or (
        isinstance(algorithm, DpHead) and algorithm.others == 0 and algorithm.rounds == 1
    )


def others_to_facts(found: Heard) -> dict[str, Json]:
    """What a hospital hears of the others, as facts."""
    return {"hospitals": found.hospitals, "sums": {label: [*pair] for label, pair in found.sums.items()}}


def _others(said: Mapping[str, Json]) -> Heard:
    pairs = {label: _pair(pair) for label, pair in as_mapping(said.get("sums")).items()}
    sums = {label: Sums(*pair) for label, pair in pairs.items() if pair is not None and pair[1] > 0}
    return Heard(whole_of(said, "hospitals", 0), sums)


def gains_told(facts: Mapping[str, Json], said: Mapping[str, Json]) -> dict[str, Gain]:
    """The gains that a hospital told of the lines of its question `facts`; ones that cannot be are left out."""
    gains, labels = as_mapping(said.get("gains")), [str(line["label"]) for line in _lines(facts)]
    pairs = {label: _pair(gains.get(label)) for label in labels}
    found = {label: Gain(*pair) for label, pair in pairs.items() if pair is not None}
    return {label: gain for label, gain in found.items() if abs(gain.value) <= 1 and gain.variance > 0}


def _pair(said: Json) -> tuple[float, float] | None:
    """Two numbers that are finite; None if something else was said."""
    numbers = [float(one) for one in as_list(said) if isinstance(one, int | float) and abs(one) < LARGEST]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
