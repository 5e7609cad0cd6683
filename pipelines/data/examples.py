"""What an example is, and which sources can give it: the one place that knows every kind."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field, TypeAdapter

from pipelines.data.admission import Opened
from pipelines.data.dicom.reader import DicomSource
from pipelines.data.labels import GlandMask, MaskLabels, TableLabels
from pipelines.data.nifti.reader import NiftiSource
from pipelines.data.pictures.reader import Pictures, PictureSource, open_pictures
from pipelines.data.prepare import Slices, Volumes
from pipelines.data.studies import open_studies
from pipelines.data.tables.features import Features, TableSource, open_lines
from pipelines.data.targets import Target

Files: TypeAlias = DicomSource | NiftiSource | PictureSource | TableSource
Labels: TypeAlias = MaskLabels | TableLabels
AnyImages: TypeAlias = Annotated[Slices | Volumes | Pictures | Features, Field(discriminator="kind")]
SOURCE: TypeAdapter[Files] = TypeAdapter(Annotated[Files, Field(discriminator="kind")])
IMAGES: TypeAdapter[Slices | Volumes | Pictures | Features] = TypeAdapter(AnyImages)

VOLUMETRIC = "dicom, nifti or phantom"
NEEDS = {"slices": VOLUMETRIC, "volumes": VOLUMETRIC, "pictures": "picture", "features": "table"}


def misfit(source_kind: str, images: AnyImages) -> str | None:
    """Why a kind of source cannot give such examples, or None."""
    needs = NEEDS[images.kind]
    if source_kind in needs.replace(",", " ").split():
        return None
    return f"source.kind: images of kind {images.kind} need {needs}, found {source_kind}"


def unmasked(
    source: Files, labels: Labels | None, images: AnyImages, gland: GlandMask | None, target: Target | None
) -> list[str]:
    """Why a source does not give the masks that are to be learnt, or about which pictures are to be cut."""
    masks = isinstance(source, PictureSource) and source.masks is not None
    problems = []
    if target == "masks" and not masks:
        problems.append("source.masks: missing, and the target is masks; say where the label maps of the pictures are")
    if target == "gland" and gland is None:
        problems.append("gland: missing, and it is the target; say where the gland masks are")
    if target == "lesion" and not isinstance(labels, MaskLabels):
        problems.append("labels: the target is lesion, which needs masks; give labels of kind mask")
    if isinstance(images, Pictures) and images.fit == "around" and not masks:
        problems.append("images.fit: around needs source.masks, about which to cut; give them, or squash or crop")
    return problems


def open_source(
    source: Files,
    labels: Labels | None,
    images: AnyImages,
    gland: GlandMask | None,
    target: Target | None = None,
    classes: tuple[str, ...] = (),
) -> Opened:
    """Everything that waits in a hospital's files. labels: None = nothing is known of studies; every label is then 0.
    target, classes: see `read_cohort`.

    Raises:
        ValueError: settings are wrong; all problems at once.
    """
    if problems := unmasked(source, labels, images, gland, target):
        raise ValueError("; ".join(problems))
    if isinstance(source, PictureSource) and isinstance(images, Pictures):
        return open_pictures(source, images, target, classes)
    if isinstance(source, TableSource) and isinstance(images, Features):
        return open_lines(source, images)
    if isinstance(source, DicomSource | NiftiSource) and isinstance(images, Slices | Volumes):
        return open_studies(source, labels, images, gland, target)
    raise ValueError(misfit(source.kind, images))
