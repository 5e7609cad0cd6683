"""Withdrawn patients, and the earlier runs that used them: a model does not forget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch

from evaluation.records import Knew
from federation.conversation import newest, remembered, stored_reply
from pipelines.data.pseudonym import normalized, pseudonym
from pipelines.hospital.hospital import SPLITS, Hospital, rows_of
from pipelines.hospital.kept import SPLIT, cohort_of
from privacy.dp.access import Split
from privacy.message import Json, Malformed, from_bytes
from privacy.release.gate import Refused

PARTS: Mapping[str, str] = {
    "train": "its model was trained on them",
    "validation": "its checkpoint was chosen by them",
    "test": "its scores count them",
}
UNKNOWN = "cannot be told: its list of patients is gone or damaged"
POOLED = "their images were sent, for a central model"
LOOKED = ("score-0", "synthesize-0", "sample-0", "translate-0", "augment-0", "route-0")
"""Requests whose memory names the cohort that they used, and how: see `looked_at`."""
Shaped: TypeAlias = tuple[str, str, Mapping[str, str]]
"""A conversation, the cohort that it used, and how it used each split."""


def excluded(hospital: Hospital) -> frozenset[str]:
    """Pseudonyms of the patients that the hospital's settings exclude, by identifier or by pseudonym."""
    names = [normalized(name) for name in (hospital.settings.exclude if hospital.settings else ())]
    return frozenset([*names, *(pseudonym(hospital.key(), name) for name in names if name)])


def looked_at(cohort: str, how: Mapping[Split, str]) -> dict[str, Json]:
    """The facts that a reply's memory stores for `knew`: the cohort, and how each split was used."""
    return {"looked_at": cohort, "how": {str(split): words for split, words in how.items()}}


def knew(hospital: Hospital) -> tuple[Knew, ...]:
    """Runs in this hospital's folder that used an excluded patient, or perhaps did."""
    out = excluded(hospital)
    if not out:
        return ()
    splits = {folder.name: _splits(hospital, folder.name, out) for folder in sorted(_folders(hospital, "cohorts"))}
    found = []
    for name, cohort, parts in (*_opened(hospital), *_looked(hospital)):
        known = splits.get(cohort)
        how = (UNKNOWN,) if known is None else tuple(parts[split] for split in known if split in parts)
        found += [Knew(name, "; ".join(how))] if how else []
    return (*found, *_pooled(hospital, [cohort for cohort, known in splits.items() if known is None or known]))


def known_outside(found: tuple[Knew, ...]) -> list[str]:
    """The names of the runs that certainly did, which may leave the hospital."""
    return [one.run for one in found if one.how != UNKNOWN]


def _splits(hospital: Hospital, cohort: str, out: frozenset[str]) -> tuple[Split, ...] | None:
    """The splits of a cohort that hold one of these patients; None if unknown."""
    try:
        split: Mapping[str, list[str]] = json.loads((hospital.cohort_folder(cohort) / SPLIT).read_text())
        return tuple(name for name in SPLITS if out & set(split[name]))
    except (OSError, ValueError, KeyError, TypeError, Refused):
        return None


def _opened(hospital: Hospital) -> Iterator[Shaped]:
    """Every conversation that began with an opening."""
    for name in _conversations(hospital):
        try:
            said = remembered(hospital.conversation(name), 0).facts.get("opening")
        except (Malformed, Refused, OSError):
            continue  # `holds` reports damage
        if isinstance(said, dict):
            yield name, str(said.get("cohort")), PARTS


def _looked(hospital: Hospital) -> Iterator[Shaped]:
    """Every conversation that scored, synthesized or translated images."""
    for name in _conversations(hospital):
        folder = hospital.conversation(name)
        if not any(folder.has(answer) for answer in LOOKED):
            continue
        try:
            facts = newest(folder).facts
        except (Malformed, OSError):
            facts = {}
        how = facts.get("how")
        parts = {split: str(words) for split, words in how.items()} if isinstance(how, dict) else {}
        yield name, str(facts.get("looked_at", "")), parts


def _pooled(hospital: Hospital, cohorts: list[str]) -> Iterator[Knew]:
    """Conversations in which the training images of one of these cohorts were released."""
    known = []
    for cohort in cohorts:
        try:
            known.append(rows_of(cohort_of(hospital, cohort))["train"].x)
        except Refused:
            continue
    for name in _conversations(hospital):
        folder = hospital.conversation(name)
        if folder.has("pool-0"):
            try:
                sent = from_bytes(stored_reply(folder, "pool-0")).tensors["train/x"]
            except (Malformed, KeyError):
                continue
            if any(torch.equal(sent, images) for images in known):
                yield Knew(name, POOLED)


def _conversations(hospital: Hospital) -> list[str]:
    runs = _folders(hospital, "conversations")
    return sorted(f"{run.name}/{one.name}" for run in runs for one in run.iterdir() if one.is_dir())


def _folders(hospital: Hospital, name: str) -> list[Path]:
    folder = hospital.root / name
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
