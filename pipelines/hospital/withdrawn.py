"""Withdrawn patients, and the earlier runs that used them: a model does not forget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch

from evaluation.records import Knew
from federation.conversation import load_memory, load_newest_memory, load_stored_reply
from pipelines.data.pseudonym import make_pseudonym, normalize_identifier
from pipelines.hospital.hospital import SPLITS, Hospital, rows_of
from pipelines.hospital.kept import SPLIT, cohort_of
from privacy.dp.access import Split
from privacy.message import Json, Malformed, from_bytes
from privacy.release.gate import Refused

PARTS: Mapping[str, str] = {
    "train": "its model was trained on them",
    "validation": "it was validated by them",
    "test": "its scores count them",
}
UNKNOWN = "cannot be told: its list of patients is gone or damaged"
POOLED = "their images were sent, for a central model"
LOOKED = ("score-0", "synthesize-0", "sample-0", "translate-0", "augment-0", "route-0")
"""Requests whose memory names the cohort that they used, and how: see `looked_at`."""
Shaped: TypeAlias = tuple[str, str, Mapping[str, str]]
"""A conversation, the cohort that it used, and how it used each split."""


def excluded_pseudonyms(hospital: Hospital) -> frozenset[str]:
    """Pseudonyms of the patients that the hospital's settings exclude, by identifier or by pseudonym."""
    names = [normalize_identifier(name) for name in (hospital.settings.exclude if hospital.settings else ())]
    return frozenset([*names, *(make_pseudonym(hospital.key(), name) for name in names if name)])


def looked_at(cohort: str, how: Mapping[Split, str]) -> dict[str, Json]:
    """The facts that a reply's memory stores for `knew`: the cohort, and how each split was used."""
    return {"looked_at": cohort, "how": {str(split): words for split, words in how.items()}}


def list_earlier_uses(hospital: Hospital) -> tuple[Knew, ...]:
    """Runs in this hospital's folder that used an excluded patient, or perhaps did."""
    out = excluded_pseudonyms(hospital)
    if not out:
        return ()
    splits = {
        folder.name: _splits_with_patients(hospital, folder.name, out)
        for folder in sorted(_list_folders(hospital, "cohorts"))
    }
    uses = []
    for name, cohort, parts in (*_list_openings(hospital), *_list_image_uses(hospital)):
        known = splits.get(cohort)
        how = (UNKNOWN,) if known is None else tuple(parts[split] for split in known if split in parts)
        uses += [Knew(name, "; ".join(how))] if how else []
    return (*uses, *_list_pooled_uses(hospital, [cohort for cohort, known in splits.items() if known is None or known]))


def known_outside(uses: tuple[Knew, ...]) -> list[str]:
    """The names of the runs that certainly did, which may leave the hospital."""
    return [use.run for use in uses if use.how != UNKNOWN]


def _splits_with_patients(hospital: Hospital, cohort: str, out: frozenset[str]) -> tuple[Split, ...] | None:
    """The splits of a cohort that hold one of these patients; None if unknown."""
    try:
        split: Mapping[str, list[str]] = json.loads((hospital.cohort_folder(cohort) / SPLIT).read_text())
        return tuple(name for name in SPLITS if out & set(split[name]))
    except (OSError, ValueError, KeyError, TypeError, Refused):
        return None


def _list_openings(hospital: Hospital) -> Iterator[Shaped]:
    """Every conversation that began with an opening."""
    for name in _list_conversations(hospital):
        try:
            facts = load_memory(hospital.conversation(name), 0).facts.get("opening")
        except (Malformed, Refused, OSError):
            continue  # `holds` reports damage
        if isinstance(facts, dict):
            yield name, str(facts.get("cohort")), PARTS


def _list_image_uses(hospital: Hospital) -> Iterator[Shaped]:
    """Every conversation that scored, synthesized or translated images."""
    for name in _list_conversations(hospital):
        folder = hospital.conversation(name)
        if not any(folder.has(answer) for answer in LOOKED):
            continue
        try:
            facts = load_newest_memory(folder).facts
        except (Malformed, OSError):
            facts = {}
        how = facts.get("how")
        parts = {split: str(words) for split, words in how.items()} if isinstance(how, dict) else {}
        yield name, str(facts.get("looked_at", "")), parts


def _list_pooled_uses(hospital: Hospital, cohorts: list[str]) -> Iterator[Knew]:
    """Conversations in which the training images of one of these cohorts were released."""
    known = []
    for cohort in cohorts:
        try:
            known.append(rows_of(cohort_of(hospital, cohort), scratch=hospital.scratch())["train"].x)
        except Refused:
            continue
    for name in _list_conversations(hospital):
        folder = hospital.conversation(name)
        if folder.has("pool-0"):
            try:
                sent = from_bytes(load_stored_reply(folder, "pool-0")).tensors["train/x"]
            except (Malformed, KeyError):
                continue
            if any(torch.equal(sent, images) for images in known):
                yield Knew(name, POOLED)


def _list_conversations(hospital: Hospital) -> list[str]:
    runs = _list_folders(hospital, "conversations")
    return sorted(f"{run.name}/{folder.name}" for run in runs for folder in run.iterdir() if folder.is_dir())


def _list_folders(hospital: Hospital, name: str) -> list[Path]:
    folder = hospital.root / name
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
