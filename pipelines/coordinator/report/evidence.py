"""What the sites told of the models, read from where the evaluate stage put it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from evaluation.histograms import from_tensors
from evaluation.noised import from_tensors as from_noised
from evaluation.overlap import Overlaps
from evaluation.overlap import from_tensors as from_overlaps
from evaluation.protocols import Evidence
from pipelines.coordinator.report.figures import Tables
from pipelines.hospital.segmentation import FLOOR
from privacy.message import Message, from_bytes


def read_tables(folder: Path, *, copies: int, seed: int) -> Tables:
    """Evidence by method and (model site, test site), as the evaluate stage wrote it. copies, seed: of the parametric
    bootstrap of noised counts; the others bring their own.
    """
    tables: dict[str, dict[tuple[str, str], Evidence]] = {}
    for entry, reply in _replies(folder):
        found: Evidence
        if "noised" in reply.tensors:
            found = from_noised(reply.tensors, reply.facts, copies=copies, seed=seed)
        elif "totals" in reply.tensors:
            found = from_overlaps({n: t for n, t in reply.tensors.items() if not n.startswith(FLOOR)})
        else:
            found = from_tensors(reply.tensors)
        tables.setdefault(entry["label"], {})[entry["model_site"], entry["test_site"]] = found
    return tables


def read_floor(folder: Path) -> dict[str, Overlaps]:
    """The mean mask's overlaps by site, where methods segment."""
    own = {
        entry["test_site"]: {n.removeprefix(FLOOR): t for n, t in reply.tensors.items() if n.startswith(FLOOR)}
        for entry, reply in _replies(folder)
        if f"{FLOOR}totals" in reply.tensors
    }
    return {site: from_overlaps(tensors) for site, tensors in own.items()}


def _replies(folder: Path) -> Iterator[tuple[dict[str, str], Message]]:
    """Of the evaluate stage, with what its index says of each."""
    for entry in json.loads((folder / "index.json").read_text()):
        yield entry, from_bytes((folder / entry["file"]).read_bytes())
