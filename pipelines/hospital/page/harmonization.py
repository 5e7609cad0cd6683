"""Harmonization on a hospital's own page: translations of its patients' images, and their quality."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from evaluation.drawing import Picture
from evaluation.harmony import COLUMNS, REASONS, Harmony, SpaceRow, as_number
from evaluation.maps import point_map, space_map
from evaluation.metrics import Measure
from evaluation.oracle_gap import Compared, gap_rows
from evaluation.pictures import contact_sheet
from evaluation.protocols import Table
from evaluation.rows import GapRow
from evaluation.tiles import Tile
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import MAP, QUALITIES, cohort_of
from pipelines.hospital.points import ENDING, FOLDER, GROUPS
from pipelines.requests.report import Oracle, Report
from pipelines.runs.store import DiskFolder
from privacy.message import Json, as_list, as_mapping, from_bytes
from privacy.release.form import value_or_none
from privacy.release.gate import Refused

REFUSED, AS_READ, ORACLE = " (refused)", "as read", "oracle"
ORACLE_WORDS = "the same simulated patients on the target's scanner: a perfect translation. Real patients have none."
PAIRS = 6
"""Patients with an image in each space; half of them positive, if there are enough."""


def build_site_harmony(hospital: Hospital, cohort: Cohort, question: Report) -> Harmony | None:
    """This hospital's translations into the spaces of a run; None where there is none."""
    raw, spaces = question.cohort, value_or_none(question.spaces) or []
    folder = DiskFolder(hospital.root / QUALITIES)
    notes = [json.loads(folder.read(f"{space}.{raw}.json")) for space in spaces if folder.has(f"{space}.{raw}.json")]
    maps = tuple(_draw_maps(hospital, spaces))
    target = hospital.name if question.imitated == hospital.name else ""
    if not notes and not maps and not target:
        return None
    return Harmony(
        target=target,
        release="",
        synthesis="",
        selected="",
        rows=tuple(_build_row(hospital.name, note) for note in notes),
        maps=maps,
        translations=tuple(_side_by_side(hospital, cohort, notes, value_or_none(question.scanner))),
    )


def compute_gap_shares(oracles: Sequence[Oracle], tables: Mapping[str, Table], measure: Measure) -> tuple[GapRow, ...]:
    """The share of the oracle gap that each line closes here. oracles: empty where there is none."""
    lines = [Compared(line["untranslated"], line["oracle"], tuple(line["others"])) for line in oracles]
    return gap_rows(tables, lines, measure)


def _build_row(site: str, facts: Mapping[str, Json]) -> SpaceRow:
    """A row of the table of spaces, with the reasons of a veto in words."""
    quality = as_mapping(facts["quality"])
    figures = {name: as_number(quality.get(name)) for name in COLUMNS}
    vetoed = as_list(facts["vetoed"])
    sentences = [str(sentence) for sentence in as_list(facts.get("sentences"))]
    if unknown := [REASONS.get(str(reason), str(reason)) for reason in as_list(facts.get("unknown"))]:
        sentences.append(f"Could not be judged here: {', '.join(unknown)}.")
    note = "" if quality else "not judged"
    return SpaceRow(site, str(facts["space"]), "", tuple(map(str, vetoed)), figures, note, tuple(sentences))


def _side_by_side(
    hospital: Hospital, cohort: Cohort, notes: Sequence[Mapping[str, Json]], scanner: str | None
) -> Iterator[Picture]:
    """The same images in every space, in one grey window, a patient a row (the paper's figures 7, row 3, and 13):
    positive ones, then negative ones, in which spots might have appeared. scanner: of the target, if that is a phantom:
    simulated patients then have a column of what they should be, the oracle.
    """
    rows = _select_rows(cohort)
    images = {AS_READ: cohort.images[rows]}
    for note in notes:
        with suppress(Refused):  # removed since
            shown = cohort_of(hospital, str(note["cohort"])).images[rows]
            images[f"{note['space']}{REFUSED if note['vetoed'] else ''}"] = shown
    if len(images) == 1:
        return
    oracle = _render_oracle(hospital, cohort, rows, scanner)
    has_oracle = oracle is not None and not any(torch.equal(oracle, each) for each in images.values())
    if oracle is not None and has_oracle:
        images[ORACLE] = oracle
    tiles = []
    for number, row in enumerate(rows):
        sign = "+" if int(cohort.labels[row]) else "−"
        name = f"{cohort.patients[int(cohort.patient[row])][:8]} {sign}"
        lesion = cohort.lesion[row].numpy() if cohort.lesion.dim() > 2 else None
        for space, each in images.items():
            image = each[number]
            pixels = ((image.permute(1, 2, 0) + 1) / 2).numpy() if len(image) == 3 else image[0].numpy()
            caption = name if space == AS_READ else space
            tiles.append(Tile(image=pixels, caption=caption, lesion=lesion if space in (AS_READ, ORACLE) else None))
    sheet = contact_sheet(tiles, title=f"The same images in every space: {', '.join(images)}", columns=len(images))
    refused = [space for space in images if space.endswith(REFUSED)]
    why = f" {', '.join(refused)}: the veto refused it here, and no model learns from it." if refused else ""
    oracle_words = f" {ORACLE}: {ORACLE_WORDS}" if has_oracle else ""
    text = f"{sheet.caption} A row is a patient, + with and − without a finding.{why}{oracle_words}"
    yield replace(sheet, caption=text.strip())


def _render_oracle(hospital: Hospital, cohort: Cohort, rows: Sequence[int], scanner: str | None) -> Tensor | None:
    """These rows' images by the target's scanner; None where patients are real, and where there is no such scanner."""
    from pipelines.hospital.simulated_spaces import render_rows_again  # slow to import

    if scanner is None:
        return None
    try:
        return render_rows_again(hospital, cohort, rows, scanner)
    except Refused:
        return None


def _select_rows(cohort: Cohort) -> list[int]:
    """One row of each of `PAIRS` patients, a positive one where the patient has any; positive patients first."""
    order = torch.argsort(cohort.labels, descending=True, stable=True)
    first = {int(cohort.patient[row]): int(row) for row in reversed(order.tolist())}
    ill = sorted(row for row in first.values() if int(cohort.labels[row]))
    well = sorted(row for row in first.values() if not int(cohort.labels[row]))
    fewer = min(len(well), PAIRS // 2)
    return [*ill[: PAIRS - fewer], *well[: PAIRS - min(len(ill), PAIRS - fewer)]]


def _draw_maps(hospital: Hospital, spaces: Sequence[str]) -> Iterator[Picture]:
    """Images as points: this hospital's beside its own synthetic ones, and in each space beside the shared ones."""
    folder = DiskFolder(hospital.root / FOLDER)
    if folder.has(MAP):
        points = from_bytes(folder.read(MAP)).tensors
        title = "How well this hospital's images can be imitated"
        yield point_map(np.asarray(points["real"].numpy()), np.asarray(points["made"].numpy()), title=title)
    for space in spaces:
        if folder.has(f"{space}{ENDING}"):
            tensors = from_bytes(folder.read(f"{space}{ENDING}")).tensors
            groups = {name: np.asarray(tensors[name].numpy()) for name in GROUPS if len(tensors[name])}
            yield space_map(groups, title=f"{space}: this hospital's images beside the shared ones")
