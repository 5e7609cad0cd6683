"""Open a hospital's source for the kind of examples: the one module that imports every reader."""

from __future__ import annotations

from pipelines.data.images import AnyImages, Features, Pictures, Slices, Target, Tensors, Volumes
from pipelines.data.intake import Intake
from pipelines.data.label_findings import FindingNames
from pipelines.data.label_numbers import LabelRange
from pipelines.data.requirements import kind_problems, mask_problems
from pipelines.data.sources import (
    DicomSource,
    Files,
    GlandMask,
    Labels,
    NiftiSource,
    PictureSource,
    TableSource,
    TensorSource,
)
from pipelines.data.tables.features import open_lines
from privacy.settings_error import SettingsError, refuse


def open_source(
    source: Files,
    labels: Labels | None,
    images: AnyImages,
    gland: GlandMask | None,
    target: Target | None = None,
    classes: tuple[str, ...] = (),
    number: LabelRange | None = None,
    findings: tuple[str, ...] = (),
) -> Intake:
    """The studies in a hospital's files, not read yet. labels: None = there are none; every label is then 0.
    target, classes, number, findings: see `read_cohort`.

    Raises:
        ValueError: settings are wrong; all problems at once.
    """
    refuse(mask_problems(source, labels, images, gland, target))
    meaning = FindingNames(findings) if findings else number
    if isinstance(source, PictureSource) and isinstance(images, Pictures):
        from pipelines.data.pictures.reader import open_pictures  # readers are slow to import

        return open_pictures(source, images, target, classes, meaning)
    if isinstance(source, TableSource) and isinstance(images, Features):
        return open_lines(source, images, classes=meaning or classes)
    if isinstance(source, TensorSource) and isinstance(images, Tensors):
        from pipelines.data.tensors.reader import open_tensors

        if number is not None:
            raise ValueError("source.kind: labels of tensors are classes, and the task learns a number; give a table")
        return open_tensors(source, images, target, classes, FindingNames(findings) if findings else None)
    if isinstance(source, DicomSource | NiftiSource) and isinstance(images, Slices | Volumes):
        from pipelines.data.studies import open_studies

        labelled = () if target else meaning or classes
        return open_studies(source, labels, images, gland, target, labelled, classes if target == "masks" else ())
    raise SettingsError(kind_problems(source.kind, images))
