"""Where a hospital's models look: maps over some images, and on how many test images they point inside the lesion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evaluation.pointing import hit_share, is_blank
from federation.models.maps import compute_stride, normalized_maps, upsample_maps
from federation.models.sensitivity import SMOOTH, compute_sensitivity
from federation.parameters import loaded
from pipelines.data.cohort import Cohort
from pipelines.data.label_numbers import read_range
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.kept import central_name, cohort_of
from pipelines.hospital.opening import Opening, own_model, parse_opening, read_opening
from pipelines.requests.methods import TableLine
from pipelines.runs.store import DiskFolder
from privacy.message import Params, from_bytes
from privacy.release.gate import Refused

COUNTED = 200  # positive test images at most; a gradient each
TOGETHER = 16  # images of which gradients are in memory


class Look(NamedTuple):
    """What a method's model looks at in some images. cams: (n, H, W) in [0, 1]. scores: (n,). images: (n, C, H, W), as
    it saw them. said: how to read the maps, and how often they point inside the lesion.
    """

    cams: Tensor
    scores: Tensor
    images: Tensor
    said: str


def build_look(hospital: Hospital, cohort: Cohort, method: TableLine, index: Sequence[int]) -> Look | None:
    """None where there is no model here, or one that does not see images, or one of several findings
    (`build_finding_looks`).
    """
    try:
        start, params = load_model(hospital, method)
    except Refused:
        return None
    images = cohort_of(hospital, method["cohort"]).images
    if images.dim() != 4 or start.task.kind == "findings":
        return None
    module = loaded(start.algorithm.network(start.task), params).eval()
    shown = images[list(index)]
    with torch.no_grad():
        scores = 1 - module(shown).logits.softmax(dim=1)[:, 0]
    if (number := read_range(cohort.recipe)) is not None:
        scores = number.low + number.width * start.task.probabilities(module, shown)[:, 0]
        return Look(_compute_maps(module, shown), scores, shown, describe_map_reading(images))
    return Look(
        _compute_maps(module, shown),
        scores,
        shown,
        f"{describe_map_reading(images)} {describe_pointing(module, cohort, images)}".strip(),
    )


def build_finding_looks(
    hospital: Hospital, method: TableLine, index: Sequence[int], names: Sequence[str]
) -> dict[str, Look]:
    """What a model of several findings looks at for each of them, by name; empty where there is no model here, or one
    that does not see images. names: of the first findings, those that are drawn.
    """
    try:
        start, params = load_model(hospital, method)
    except Refused:
        return {}
    images = cohort_of(hospital, method["cohort"]).images
    if images.dim() != 4 or start.task.kind != "findings":
        return {}
    module, shown = loaded(start.algorithm.network(start.task), params).eval(), images[list(index)]
    scores, said = start.task.probabilities(module, shown), describe_map_reading(images)
    return {
        name: Look(_compute_maps(module, shown, number), scores[:, number], shown, said)
        for number, name in enumerate(names)
    }


def compute_case_maps(
    hospital: Hospital, method: TableLine | None, index: Sequence[int]
) -> tuple[Tensor, Tensor] | None:
    """Maps (n, H, W) of a model's score over these examples, and the images (n, C, H, W) as it saw them. None where
    there is no model here, or one that does not see images, or one of several findings.
    """
    if method is None:
        return None
    try:
        start, params = load_model(hospital, method)
    except Refused:
        return None
    images = cohort_of(hospital, method["cohort"]).images
    if images.dim() != 4 or start.task.kind == "findings" or not index:
        return None
    module = loaded(start.algorithm.network(start.task), params).eval()
    shown = images[list(index)]
    return _compute_maps(module, shown), shown


def load_model(hospital: Hospital, method: TableLine) -> tuple[Opening, Params]:
    """This hospital's own model, or that of the central baseline, which visited it. Raises: Refused."""
    folder = DiskFolder(hospital.root / "scores")
    run, central = method["train_run"], central_name(method["train_run"])
    if folder.has(central):
        visiting = from_bytes(folder.read(central))
        facts = visiting.facts["opening"]
        return parse_opening(hospital, facts if isinstance(facts, dict) else {}), visiting.tensors
    return read_opening(hospital, run), own_model(hospital, run, method["checkpoint"], method["best"])[1]


def describe_map_reading(images: Tensor) -> str:
    """How to read a map of images (n, C, H, W)."""
    sides = images.shape[-2:]
    return (
        "Bright: where a change of the image would change the score most (the size of the score's gradient at each of "
        f"{sides[0]} × {sides[1]} pixels, smoothed by {SMOOTH * min(sides):.2g} pixels, divided by its largest value "
        "in that image). It says nothing of how sure the model is, and every image has a brightest place: read the "
        "score first."
    )


def describe_pointing(module: nn.Module, cohort: Cohort, images: Tensor) -> str:
    """On how many positive test images the maps point inside the lesion, and how many class activation maps are blank.

    images: of the cohort, as the model sees them. Empty where there is nothing to say.
    """
    rows = ((cohort.split == SPLITS.index("test")) & (cohort.labels > 0)).nonzero()[:, 0]
    outlined = cohort.lesion.dim() == 3 and len(cohort.lesion) == len(images)
    if outlined:
        rows = rows[(cohort.lesion[rows] > 0).flatten(1).any(dim=1)]
    rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), COUNTED)).round().long()]
    if not len(rows):
        return ""
    class_maps = _class_maps(module, images[rows])
    empty = 0 if class_maps is None else sum(is_blank(class_map.double().numpy()) for class_map in class_maps)
    sentences = []
    if outlined:
        lesions = cohort.lesion[rows] > 0
        share = 100 * float(lesions.double().mean())
        sentences.append(
            f"In {_pointing_share(_compute_maps(module, images[rows]), lesions):.0f} of {len(rows)} positive test"
            " images the largest value lies inside the outlined lesion; a place drawn at random would in"
            f" {share:.2g} %."
        )
        inside = (
            "" if class_maps is None else f", and point inside the lesion in {_pointing_share(class_maps, lesions):.0f}"
        )
    else:
        inside = ""
    if class_maps is not None:
        sentences.append(
            "The class activation maps of the network (equation 9 of VAFL) are not drawn: they are blank in "
            f"{empty} of {len(rows)} positive test images{inside}."
        )
    return " ".join(sentences)


def _pointing_share(cams: Tensor, lesions: Tensor) -> float:
    """The sum of the hits of maps inside lesions."""
    pairs = zip(cams.double().numpy(), lesions.numpy(), strict=True)
    return sum(hit_share(cam, mask) for cam, mask in pairs)


def _compute_maps(module: nn.Module, images: Tensor, finding: int | None = None) -> Tensor:
    """The sensitivity of the model, or of its score of one of several findings, to each pixel, a few images at a
    time.
    """
    return torch.cat([compute_sensitivity(module, batch, finding) for batch in torch.split(images, TOGETHER)])


@torch.no_grad()
def _class_maps(module: nn.Module, images: Tensor) -> Tensor | None:
    """The largest CAM of the classes but the first at every pixel, (n, H, W); None of a network without maps."""
    maps = module(images).maps
    if maps is None:
        return None
    cams = normalized_maps(maps)[:, 1:].amax(dim=1, keepdim=True)
    return upsample_maps(cams, compute_stride(maps, images), (images.shape[-2], images.shape[-1]))[:, 0]
