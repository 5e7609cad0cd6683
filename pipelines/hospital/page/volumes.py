"""Sizes of masks on a hospital's own page: predicted against given, patient by patient. Nothing of it leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from evaluation.histograms import draw_patient_weights
from evaluation.masks import Values
from evaluation.volumes import SizeRow, Sizes, SizeSection, SizeWords, compare_sizes, draw_sizes
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.segmentation import kind_of, size_words


def compare_page_sizes(
    hospital: Hospital,
    known: Mapping[str, tuple[Cohort, Values | None]],
    structures: Sequence[str],
    copies: int,
    pictured: Collection[str | None],
) -> SizeSection:
    """Sizes as this hospital kept them. known: label -> the cohort and single patients' scores. pictured: labels of
    which there are figures.

    A line whose scores were kept before sizes were has none, and is left out.
    """
    rows, shown = list[SizeRow](), dict[str, tuple[str, Sizes]]()
    words = SizeSection().words
    for label, (cohort, values) in known.items():
        if values is None or values.sizes is None:
            continue
        words = size_words(kind_of(cohort))
        for name, sizes in _split_by_structure(hospital, cohort, values, structures, copies, words).items():
            if (row := compare_sizes(label, name, sizes)) is None:
                continue
            rows.append(row)
            if label in pictured:
                shown[f"{label}, {name}" if len(structures) > 1 else label] = (label, sizes)
    return SizeSection(tuple(rows), (draw_sizes(shown, words),) if shown else (), words)


def _split_by_structure(
    hospital: Hospital, cohort: Cohort, values: Values, structures: Sequence[str], copies: int, words: SizeWords
) -> dict[str, Sizes]:
    """The sizes of each structure, in the unit of the page, with the draws of patients that scores have."""
    weights = draw_patient_weights(values.patients, copies, hospital.bootstrap_seed(), hospital.name)
    names = [cohort.patients[int(patient)][:8] for patient in values.patients]
    if values.sizes is None:
        return {}
    return {
        structure: Sizes.of_sample(values.sizes[:, number] / words.divisor, weights, names)
        for number, structure in enumerate(structures)
    }
