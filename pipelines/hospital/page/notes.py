"""Notes that methods made at this hospital in training, as pictures and warnings for its own page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from evaluation.drawing import Picture
from evaluation.figures import Curve, draw_note_curves
from evaluation.heat import draw_round_matrix
from evaluation.histograms import Floats
from federation.conversation import load_newest_intact_memory
from federation.participant import NOTES
from personalize.cusfl import COLLAPSED
from pipelines.hospital.hospital import Hospital
from pipelines.requests.methods import TableLine
from privacy.message import as_mapping

Series: TypeAlias = Mapping[int, float]
"""Round -> value."""

WORDS = {
    "similarity": "L_sim",
    "lambda2": "lambda_2",
    "between": "|cosine| between images",
    "share": "share of the guidance in the loss",
    "distance_to_global": "distance to the global model",
    "distance_to_w": "distance to w",
    "global_contrast": "contrast, global features",
    "local_contrast": "contrast, local features",
}
"""Notes that have clearer names on a page; the others have their own."""

WARNINGS = {
    "collapsed": (
        f"projections of different images became one vector (mean |cosine| between them above {COLLAPSED}) in "
        "{rounds}: the federated features no longer tell images apart, and guidance by them says nothing."
    ),
    "asleep": (
        "guidance made up less than half of the share r of the loss in {rounds}: the federated features hardly guided "
        "this hospital's, and another r would change little; look at cap and normalize."
    ),
    "own core climbs its loss (p_ii <= 0)": (
        "this hospital's share of its own core model was 0 or less after {rounds}: training then leaves that core "
        "where it is or moves it up its loss, and that core is what the other hospitals get."
    ),
}
"""Notes that are 1 if a person should know; they become warnings, not pictures."""


class Noted(NamedTuple):
    """Pictures, and sentences that warn."""

    pictures: tuple[Picture, ...]
    warnings: tuple[str, ...]


def collect_notes(hospital: Hospital, methods: Sequence[TableLine]) -> Noted:
    """All notes of a run's methods at this hospital."""
    curves: dict[tuple[str, str], Curve] = {}
    maps: list[Picture] = []
    warnings: list[str] = []
    for method in methods:
        label, method_series = method["label"], read_series(hospital, method["train_run"])
        for name, values in method_series.items():
            if name in WARNINGS:
                rounds = [number for number, value in values.items() if value > 0]
                warnings += [f"{label}: {WARNINGS[name].format(rounds=describe_rounds(rounds))}"] if rounds else []
            elif "/" not in name:
                curves[label, WORDS.get(name, name)] = Curve(tuple(values), tuple(values.values()))
        maps += [draw_round_matrix(*heat, name, label) for name, heat in by_site(method_series).items()]
    order = [method["label"] for method in methods]
    return Noted((*([draw_note_curves(curves, order=order)] if curves else ()), *maps), tuple(warnings))


def read_series(hospital: Hospital, run: str) -> dict[str, dict[int, float]]:
    """A method's notes: note -> round -> value; rounds in order, finite numbers only."""
    notes = as_mapping(load_newest_intact_memory(hospital.conversation(run)).facts.get(NOTES))
    values_by_note: dict[str, dict[int, float]] = {}
    for round_ in sorted(notes, key=int):
        for name, value in as_mapping(notes[round_]).items():
            if isinstance(value, int | float) and math.isfinite(value):
                values_by_note.setdefault(name, {})[int(round_)] = float(value)
    return values_by_note


def by_site(series_by_note: Mapping[str, Series]) -> dict[str, tuple[list[str], list[int], Floats]]:
    """Notes about each site, as `p/SITE`: name -> sites, rounds and values (sites, rounds), NaN if missing."""
    groups: dict[str, dict[str, Series]] = {}
    for name, values in series_by_note.items():
        group, slash, site = name.partition("/")
        if slash:
            groups.setdefault(group, {})[site] = values
    maps: dict[str, tuple[list[str], list[int], Floats]] = {}
    for group, group_series in groups.items():
        sites, rounds = sorted(group_series), sorted({number for values in group_series.values() for number in values})
        maps[group] = sites, rounds, np.array([[group_series[site].get(n, math.nan) for n in rounds] for site in sites])
    return maps


def describe_rounds(rounds: Sequence[int]) -> str:
    """Rounds in words: "round 3", "rounds 2 to 5, 9"."""
    ends = [number for number in rounds if number - 1 not in rounds], [n for n in rounds if n + 1 not in rounds]
    words = [f"{low}" if low == high else f"{low} to {high}" for low, high in zip(*ends, strict=True)]
    return f"{'round' if len(rounds) == 1 else 'rounds'} {', '.join(words)}"
