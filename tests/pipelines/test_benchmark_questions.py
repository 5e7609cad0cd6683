"""What a benchmark asks keeps its names and its bytes: a hospital finds what it has answered, and nobody pays twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federation.engine import Answers
from pipelines.benchmark.asking import ask_hospital
from pipelines.data.images import AnyImages, Features, Pictures, Slices
from pipelines.loader.validation import to_plain
from pipelines.models.file import parse_ready
from pipelines.models.signed import TENSOR, Signed, to_tensor
from pipelines.settings.benchmark import BenchmarkSettings, Models
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.message import Call, Json, Message, to_bytes
from signed_models import COLUMN, finished, sees, signature_of

SURVEYED = Message({}, {"digest": "a" * 64, "requests": [], "algorithms": None, "private": False})
NUMBERS = (
    "files used_files quarantined_files unselected_files ignored_files patients_without_use unselected_series studies "
    "patients images positives excluded unmatched_exclusions unmatched_tests rejected"
)
COUNTED = Message(
    {},
    {
        **dict.fromkeys(NUMBERS.split(), 3),
        **{"cohort": "c" * 16, "sha256": "b" * 64, "cut": "cut", "splits": {}, "rejected_by_reason": {}},
        **{"scanners": {}, "max_rejected": 0.1, "too_many_rejected": False},
    },
)
COUNTED_ONCE = Message(
    {},
    {
        **dict.fromkeys(("patients", "images", "positives", "min_patients"), 3),
        **{"cohort": "c" * 16, "sha256": "b" * 64, "cut": "cut", "splits": {}},
        "released": {"noise": 0.0, "date": "2026-01-01"},
    },
)
LATER = Message({}, {**COUNTED.facts, "of_a_later_version": 1})
READ: dict[str, Any] = {
    "split": {"train": 0.5, "validation": 0.15, "test": 0.35, "folds": None, "fold": None},
    "seed": 0,
    "independent": True,
}
LINE: dict[str, Json] = {"kind": "features", "numbers": ["x"], "categories": {}, "normalize": "none", "ranges": {}}
SLICES: dict[str, Json] = {"kind": "slices", "values": "adc", "spacing_mm": 4.0, "size": 16}
SLICES |= {"centre": "gland", "slices": "all", "context": 1}
DISC: dict[str, Json] = {"kind": "pictures", "size": 16, "channels": 3, "fit": "around", "margin": 1.5}
SCALED = Features(numbers=("x",))
AROUND = Pictures(size=16, fit="around", margin=1.5)
NAMES = ("a", "b", "c")
CASES: dict[str, tuple[AnyImages, Mapping[str, Any], Message, Mapping[str, Json], str]] = {
    "a column": (COLUMN, {}, COUNTED, {"images": LINE}, "ingest-562e56fff95e"),
    "scaled at its hospital": (SCALED, {}, COUNTED_ONCE, {"images": LINE}, "ingest-562e56fff95e"),
    "named classes": (
        COLUMN,
        {"labels": NAMES},
        LATER,
        {"images": LINE, "classes": [*NAMES]},
        "ingest-3e1fc14780a2",
    ),
    "slices": (Slices(size=16, spacing_mm=4.0), {}, COUNTED, {"images": SLICES}, "ingest-0967e78819fb"),
    "the disc in pictures": (
        AROUND,
        {"target": "masks"},
        COUNTED,
        {"images": DISC, "target": "masks", "classes": ["disc"]},
        "ingest-fa7c0333582f",
    ),
    "the gland in slices": (
        Slices(size=16, spacing_mm=4.0),
        {"target": "gland"},
        COUNTED,
        {"images": SLICES, "target": "gland", "classes": []},
        "ingest-2f0ad3c01766",
    ),
}


class Noted:
    """A hospital that answers what it is told to, and notes what it is asked."""

    sites = ("east",)

    def __init__(self, counts: Message) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.counts = counts

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        self.asked.append((call.run, call.request, to_bytes(messages["east"])))
        if call.request == "benchmark":
            return Answers({}, {"east": "budget"})
        return Answers({"east": SURVEYED if call.request == "survey" else self.counts}, {})


def ask(folder: Path, case: str, **plan: Any) -> tuple[Noted, Signed]:
    """What is asked for one model, whose file is always the same: what it wants read is that of the case."""
    images, wants, counts, _, _ = CASES[case]
    data = finished(params=sees(2.0))
    ready = parse_ready(data)
    ready = replace(ready, images=images, origin=replace(ready.origin, **wants), names=("disc",))
    signed = Signed(data, signature_of(folder, data), ready)
    sites = {"east": SiteSettings(source=Elsewhere())}
    settings = BenchmarkSettings(name="bench", benchmark=Models(models={"ours": "ours"}, **plan), sites=sites)
    engine = Noted(counts)
    answers = ask_hospital(settings, {"ours": signed}, engine, "east", folder, lambda: None)
    assert answers.refused == {"ours": ("benchmark", "budget")}
    return engine, signed


@pytest.mark.parametrize("case", CASES)
def test_files_are_read_by_the_same_question_as_ever(tmp_path: Path, case: str) -> None:
    *_, reading, name = CASES[case]
    engine, _ = ask(tmp_path, case)
    assert engine.asked[0] == ("bench/survey", "survey", to_bytes(Message()))
    assert engine.asked[1] == (f"bench/{name}", "ingest", to_bytes(Message({}, {**reading, **READ})))


@pytest.mark.parametrize(("epsilon", "name"), [(1.0, "b67e90648063"), (None, "c921e10dc3b6")])
def test_a_model_is_scored_by_the_same_question_as_ever(tmp_path: Path, epsilon: float | None, name: str) -> None:
    engine, signed = ask(tmp_path, "a column", copies=50, epsilon=epsilon)
    facts = {"cohort": "c" * 16, "copies": 50, "epsilon": epsilon, "signature": to_plain(signed.signature)}
    sent = to_bytes(Message({TENSOR: to_tensor(signed.data)}, facts))
    assert engine.asked[2:] == [(f"bench/{signed.sha256}-{name}", "benchmark", sent)]


def test_the_next_command_names_the_last_answer_as_it_came(tmp_path: Path) -> None:
    """Also one with a fact that this version does not know: the hospital has the digest of all of its bytes."""
    ask(tmp_path, "named classes")
    engine, _ = ask(tmp_path, "named classes")
    digest = hashlib.sha256(to_bytes(LATER)).hexdigest()
    assert engine.asked[0] == ("bench/survey", "survey", to_bytes(Message({}, {"witness": digest})))
