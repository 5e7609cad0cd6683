"""Which finished models this hospital holds as files, and their losses on its own validation patients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evaluation.records import Model
from federation.conversation import newest_whole
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.opening import opened
from pipelines.loader.names import named
from pipelines.models.file import READY, WHOLE, ended_in
from privacy.message import Json, Malformed, as_list, as_mapping, from_bytes, losses_of, unsealed, whole_of
from privacy.release import ledger as ledgers
from privacy.release.gate import BUDGET, Refused


def usable(hospital: Hospital, facts: Mapping[str, Json]) -> tuple[Model, ...]:
    """The models that a `report` request names. Variants have no validation loss."""
    methods, variants = (_each(facts, name) for name in ("methods", "variants"))
    return (
        *(_model(hospital, one, _loss(hospital, one)) for one in methods),
        *(_model(hospital, one, math.nan) for one in variants),
    )


def _model(hospital: Hospital, one: Mapping[str, Json], loss: float) -> Model:
    ended = ended_in(history(hospital, str(one["train_run"]), one.get("rounds")))
    return Model(hospital.name, str(one["label"]), loss, _file(hospital, one), ended)


def history(hospital: Hospital, run: str, rounds: Json) -> dict[str, Json]:
    """How a training went here, by the ledger: `rounds_trained`, of how many `rounds` (None = nobody said), and how it
    `ended`: `whole`, or with the code with which this hospital left.
    """
    lines = [
        line for line in ledgers.lines(hospital.ledger) if (line.get("run"), line.get("request")) == (run, "train")
    ]
    trained = {str(line["round"]) for line in lines if line.get("refused") is None}
    spent = any(line.get("refused") == BUDGET for line in lines)
    return {"rounds_trained": len(trained), "rounds": rounds, "ended": BUDGET if spent else WHOLE}


def noised(hospital: Hospital, methods: Sequence[Mapping[str, Json]]) -> bool:
    """Whether this hospital's scores leave with noise, by the settings that it got when a method began."""
    for one in methods:
        try:
            if opened(hospital, str(one["train_run"])).protection is not None:
                return True
        except (Refused, Malformed):
            continue  # the central baseline is trained at the pooled site
    return False


def _each(facts: Mapping[str, Json], name: str) -> list[Mapping[str, Json]]:
    return [as_mapping(one) for one in as_list(facts.get(name, []))]


def _loss(hospital: Hospital, method: Mapping[str, Json]) -> float:
    """Validation loss of a checkpoint's model; NaN if it was not scored on validation patients."""
    finite = losses_of(newest_whole(hospital.conversation(str(method["train_run"]))).facts)
    if not finite:
        return math.nan
    if method["checkpoint"] == "local":
        return min(finite.values())
    number = whole_of(method, "best", 0) if method["checkpoint"] == "global" else max(finite)
    return finite.get(number, math.nan)


def _file(hospital: Hospital, method: Mapping[str, Json]) -> str:
    """Path of this run's model file; empty if there is none, or one of another run."""
    label = str(method["label"])
    path = hospital.root / READY / f"{label}.safetensors"
    if not named(label) or not path.is_file():  # labels come from the coordinator and become file names
        return ""
    try:
        found = from_bytes(unsealed(path.read_bytes())).facts
    except (Malformed, ValueError, OSError):
        return ""  # damaged, so it cannot be recommended
    return str(path) if found.get("run") == method["train_run"] else ""
