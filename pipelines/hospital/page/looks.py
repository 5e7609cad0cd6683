"""Where a hospital's models look: maps over some images, and on how many test images they point inside the lesion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evaluation.pointing import hit_share, is_blank
from federation.models.maps import compute_stride, normalized_maps, upsample_maps
from federation.models.sensitivity import SMOOTH, differentiate, divide_by_largest
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

COUNTED = 100  # positive test images at most; a gradient each
TOGETHER, PIXELS = 16, 2**17  # images of which gradients are in memory: so many, or more of few pixels


class Look(NamedTuple):
    """What a method's model looks at in some images. cams: (n, H, W) in [0, 1]. scores: (n,). images: (n, C, H, W), as
    it saw them. caption: how to read the maps, and how often they point inside the lesion.
    """

    cams: Tensor
    scores: Tensor
    images: Tensor
    caption: str


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
    module = _open_network(start, params)
    shown = images[list(index)]
    if (number := read_range(cohort.recipe)) is not None:
        scores = number.low + number.width * start.task.probabilities(module, shown)[:, 0]
        return Look(see_images(module, shown).cams, scores, shown, describe_map_reading(images))
    positive = list_positive(cohort)
    counted = select_counted(positive)
    rows = list(dict.fromkeys([*index, *counted.tolist()]))  # an image that is shown and counted is seen once
    seen = see_images(module, images[rows])
    drawn = seen.take([rows.index(row) for row in index])
    counted_maps = seen.take([rows.index(row) for row in counted.tolist()])
    pointing = describe_pointing(counted_maps, take_lesions(cohort, counted), len(positive))
    return Look(drawn.cams, drawn.scores, shown, f"{describe_map_reading(images)} {pointing}".strip())


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
    module, shown = _open_network(start, params), images[list(index)]
    scores, caption = start.task.probabilities(module, shown), describe_map_reading(images)
    return {
        name: Look(see_images(module, shown, number).cams, scores[:, number], shown, caption)
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
    module = _open_network(start, params)
    shown = images[list(index)]
    return see_images(module, shown).cams, shown


def load_model(hospital: Hospital, method: TableLine) -> tuple[Opening, Params]:
    """This hospital's own model, or that of the central baseline, which visited it. Raises: Refused."""
    folder = DiskFolder(hospital.root / "scores")
    run, central = method["train_run"], central_name(method["train_run"])
    if folder.has(central):
        visiting = from_bytes(folder.read(central))
        facts = visiting.facts["opening"]
        return parse_opening(hospital, facts if isinstance(facts, dict) else {}), visiting.tensors
    return read_opening(hospital, run), own_model(hospital, run, method["checkpoint"], method["best"])[1]


def _open_network(start: Opening, params: Params) -> nn.Module:
    """The network of images in evaluation mode, as a CPU convolves them fastest: with channels last."""
    network: nn.Module = loaded(start.algorithm.network(start.task), params).eval()
    # torch's stub knows no memory format by itself
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def describe_map_reading(images: Tensor) -> str:
    """How to read a map of images (n, C, H, W)."""
    sides = images.shape[-2:]
    return (
        "Bright: where a change of the image would change the score most (the size of the score's gradient at each of "
        f"{sides[0]} × {sides[1]} pixels, smoothed by {SMOOTH * min(sides):.2g} pixels, divided by its largest value "
        "in that image). It says nothing of how sure the model is, and every image has a brightest place: read the "
        "score first."
    )


class Seen(NamedTuple):
    """What a network shows of images. cams: (n, H, W) in [0, 1], its sensitivity. scores: (n,), 1 - p of the first
    class. class_maps: (n, H, W), the largest class activation map of the other classes; None of a network without.
    """

    cams: Tensor
    scores: Tensor
    class_maps: Tensor | None

    def take(self, places: Sequence[int]) -> Seen:
        """Of some of the images."""
        rows = torch.tensor(places, dtype=torch.long)
        return Seen(self.cams[rows], self.scores[rows], None if self.class_maps is None else self.class_maps[rows])


def see_images(module: nn.Module, images: Tensor, finding: int | None = None) -> Seen:
    """One pass forwards and one back for images (n, C, H, W), a few at a time. finding: the one of several whose
    score it is.
    """
    together = max(TOGETHER, PIXELS // max(1, images.shape[-2] * images.shape[-1]))
    passes = [differentiate(module, batch, finding) for batch in torch.split(images, together)]
    outputs = [output for _, output in passes]
    maps = [output.maps for output in outputs if output.maps is not None and output.maps.shape[2] > 1]
    return Seen(
        divide_by_largest(torch.cat([slopes for slopes, _ in passes])),
        1 - torch.cat([output.logits for output in outputs]).softmax(dim=1)[:, 0],
        _enlarge_class_maps(torch.cat(maps), images) if maps else None,
    )


def list_positive(cohort: Cohort) -> Tensor:
    """Rows of positive test images, with an outline where lesions are outlined."""
    rows = ((cohort.split == SPLITS.index("test")) & (cohort.labels > 0)).nonzero()[:, 0]
    if _is_outlined(cohort):
        rows = rows[(cohort.lesion[rows] > 0).flatten(1).any(dim=1)]
    return rows


def select_counted(rows: Tensor) -> Tensor:
    """All rows, or `COUNTED` evenly spread over them."""
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), COUNTED)).round().long()]


def describe_pointing(seen: Seen, lesions: Tensor | None, positive: int) -> str:
    """On how many positive test images the maps point inside the lesion, and how many class activation maps are blank.

    lesions: (n, H, W) bool; None where they are not outlined. positive: how many images there are, of which n were
    counted. Empty where there is nothing to say.
    """
    number, class_maps = len(seen.cams), seen.class_maps
    if not number:
        return ""
    sentences, inside, of_more = list[str](), "", f", evenly spread over {positive}," if positive > number else ""
    if lesions is not None:
        by_chance = 100 * float(lesions.double().mean())
        sentences.append(
            f"In {_pointing_share(seen.cams, lesions):.0f} of {number} positive test images{of_more} the largest value "
            f"lies inside the outlined lesion; a place drawn at random would in {by_chance:.2g} %."
        )
    if class_maps is not None:
        if lesions is not None:
            inside = f", and point inside the lesion in {_pointing_share(class_maps, lesions):.0f}"
        empty = sum(is_blank(class_map.double().numpy()) for class_map in class_maps)
        sentences.append(
            "The class activation maps of the network (equation 9 of VAFL) are not drawn: they are blank in "
            f"{empty} of {number} positive test images{of_more if lesions is None else ''}{inside}."
        )
    return " ".join(sentences)


def _is_outlined(cohort: Cohort) -> bool:
    """Whether a cohort has outlines of lesions on its images."""
    return cohort.lesion.dim() == 3 and len(cohort.lesion) == len(cohort.labels)


def take_lesions(cohort: Cohort, rows: Tensor) -> Tensor | None:
    """The outlines of lesions (n, H, W) of these rows; None where there are none."""
    return cohort.lesion[rows] > 0 if _is_outlined(cohort) else None


def _pointing_share(cams: Tensor, lesions: Tensor) -> float:
    """The sum of the hits of maps inside lesions."""
    pairs = zip(cams.double().numpy(), lesions.numpy(), strict=True)
    return sum(hit_share(cam, mask) for cam, mask in pairs)


def _enlarge_class_maps(maps: Tensor, images: Tensor) -> Tensor:
    """The largest CAM of the classes but the first at every pixel, (n, H, W)."""
    cams = normalized_maps(maps)[:, 1:].amax(dim=1, keepdim=True)
    return upsample_maps(cams, compute_stride(maps, images), (images.shape[-2], images.shape[-1]))[:, 0]
