"""The files, labels and masks that a source must have for the requested examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipelines.data.images import AnyImages, Pictures, Target
from pipelines.data.sources import (
    DicomSource,
    Files,
    GlandMask,
    Labels,
    MaskLabels,
    NiftiSource,
    PictureMasks,
    PictureSource,
    TableLabels,
    TableSource,
    TensorSource,
    VolumeMasks,
)
from privacy.settings_error import Problem

VOLUMETRIC = "dicom, dicomweb, dicom_node, nifti or phantom"
NEEDS = {"slices": VOLUMETRIC, "volumes": VOLUMETRIC, "pictures": "picture", "features": "table", "tensors": "tensors"}


def kind_problems(source_kind: str, images: AnyImages) -> list[Problem]:
    """Problems with a kind of source that cannot give such examples."""
    needs = NEEDS[images.kind]
    if source_kind in needs.replace(",", " ").split():
        return []
    return [Problem(("source", "kind"), f"images of kind {images.kind} need {needs}, found {source_kind}")]


def find_label_maps(source: object) -> PictureMasks | VolumeMasks | None:
    """The settings of a source's label maps; None if it has none."""
    return source.masks if isinstance(source, DicomSource | NiftiSource | PictureSource) else None


def mask_problems(
    source: Files, labels: Labels | None, images: AnyImages, gland: GlandMask | None, target: Target | None
) -> list[Problem]:
    """Problems with a source without the masks that are the target, or about which pictures are cropped."""
    masks = find_label_maps(source) is not None
    problems = []
    if target == "masks" and not (masks or isinstance(source, TensorSource)):
        text = "missing, and the target is masks; say where the label maps are, and what their values stand for"
        problems.append(Problem(("source", "masks"), text))
    if target == "gland" and gland is None:
        problems.append(Problem(("gland",), "missing, and it is the target; say where the gland masks are"))
    if target == "lesion" and not isinstance(labels, MaskLabels):
        problems.append(Problem(("labels",), "the target is lesion, which needs masks; give labels of kind mask"))
    if isinstance(images, Pictures) and images.fit == "around" and not masks:
        text = "around needs source.masks, about which to cut; give them, or squash or crop"
        problems.append(Problem(("images", "fit"), text))
    return problems


class Needed(NamedTuple):
    """A folder or a file that a hospital's settings name. where: the key in the settings. code: the hospital's answer
    if it is missing.
    """

    where: tuple[str, ...]
    code: str
    path: str
    folder: bool

    @property
    def exists(self) -> bool:
        """Whether it exists and has the right type."""
        return Path(self.path).is_dir() if self.folder else Path(self.path).is_file()

    @property
    def problem(self) -> Problem:
        """Its problem; only where it does not exist."""
        what = "folder" if self.folder else "file"
        state = f"is no {what}" if Path(self.path).exists() else "does not exist"
        return Problem(self.where, f"{self.path!r} {state}; give a {what} that is there")


def list_needed_paths(source: Files, labels: Labels | None, gland: GlandMask | None) -> Iterator[Needed]:
    """Every folder and file without which a hospital's patients cannot be read."""
    if isinstance(source, TableSource | TensorSource):
        yield Needed(("source", "file"), "no_folder", source.file, False)
    else:
        yield Needed(("source", "folder"), "no_folder", source.folder, True)
    if isinstance(source, PictureSource) and source.table is not None:
        yield Needed(("source", "table"), "no_labels", source.table, False)
    if (maps := find_label_maps(source)) is not None:
        yield Needed(("source", "masks", "folder"), "no_labels", maps.folder, True)
        if isinstance(maps, VolumeMasks) and maps.names is not None:
            yield Needed(("source", "masks", "names"), "no_labels", maps.names, False)
    if isinstance(labels, TableLabels):
        yield Needed(("labels", "file"), "no_labels", labels.file, False)
    for key, code, masks in (("labels", "no_labels", labels), ("gland", "no_gland", gland)):
        if isinstance(masks, MaskLabels | GlandMask):
            yield Needed((key, "folder"), code, masks.folder, True)
            if masks.names is not None:
                yield Needed((key, "names"), code, masks.names, False)
