"""Inversion attacks by the hospital itself: reconstruct its training images from gradients and features.

Uses a model of the hospital and a few of its training images. The reconstructions and their similarity to the images
stay on its own page, like all scores of single patients; means leave only if the model has no guarantee either.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evaluation.drawing import Picture
from evaluation.pictures import contact_sheet
from evaluation.tiles import Tile
from evaluation.wording import format_number
from federation.randomness import derive_seed
from pipelines.data.cohort import Cohort
from pipelines.data.stored import of_patients
from pipelines.hospital.hospital import Hospital, rows_of
from pipelines.hospital.kept import cohort_of, scores_name_of
from pipelines.hospital.opening import Opening
from pipelines.hospital.segmentation import kind_of
from pipelines.requests.methods import TableLine
from pipelines.runs.store import DiskFolder
from privacy.attacks.inversion import (
    Inversion,
    Likeness,
    Pixels,
    compute_likeness,
    invert_features,
    invert_gradient,
    shown_gradient,
)
from privacy.dp.access import Rows
from privacy.dp.protection import Protection
from privacy.message import Json, Message, as_list, as_mapping, from_bytes, number_of, to_bytes
from privacy.release.gate import Refused

MOST = 2**32
"""Most work of one attack on one model: steps x images x numbers in an image."""
ENOUGH = 10**6  # numbers are enough to estimate black and white
WHITE = 0.995  # quantile of the pixels that is shown as white
NO_IMAGES = "its examples are lines of a table: there is no image to draw"
NO_PIXELS = "its examples are fixed features of images: this attack draws pixels, and is not tried on features"
MEAN, PLAIN, PROTECTED, FEATURES = "mean image", "gradient", "gradient, clipped and noised", "features"
ATTACKS = (MEAN, PLAIN, PROTECTED, FEATURES)
CAPTION = (
    "Left: a training image. Mean image: that of this hospital's other training patients, the floor: what is drawn no "
    "better was not found. Then what an attacker draws who holds this hospital's model and, of this one image, its "
    "gradient or its features; who knows its {truth}, and bounds and mean of the images' values. A round sums up more "
    "images over more steps, and so shows less. That a picture fails does not prove that a better attack would."
)


class Drawn(NamedTuple):
    """Reconstructions of some images, each (n, C, *spatial), and n similarities to them, by attack."""

    pictures: Mapping[str, Tensor]
    similarities: Mapping[str, Sequence[Likeness]]


def invert_model(
    hospital: Hospital, start: Opening, module: nn.Module, settings: Inversion, name: str, scores_file: str
) -> dict[str, Json]:
    """Attack a model of this hospital on its training images, and store the reconstructions here.

    name: of the cohort. scores_file: of the model, beside which the result is stored.

    Returns: `images`, `steps`, and by attack the means of `psnr` (dB) and `ssim` and how many reconstructions are
    `better` than the mean image; or the `reason` why nothing could be reconstructed.

    Raises:
        Refused: `malformed_inversion`: more work than a hospital allows.
    """
    cohort = of_patients(cohort_of(hospital, name))
    rows = rows_of(cohort, hospital.device, start.target, scratch=hospital.scratch())["train"]
    numbers = settings.steps * settings.images * math.prod(rows.x.shape[1:])
    if numbers > MOST:
        text = f"steps x images x numbers in an image must be <= {MOST}, found {numbers}"
        raise Refused("malformed_inversion") from ValueError(text)
    if rows.x.dim() < 4:
        return {"reason": NO_PIXELS if "features" in cohort.recipe else NO_IMAGES}
    index = select_images(rows, settings.images)
    reconstructions = _reconstruct_images(hospital, start, module, rows, index, settings)
    summary: dict[str, Json] = {
        "images": len(index),
        "steps": settings.steps,
        "attacks": {
            name: _mean_figures(likenesses, reconstructions.similarities[MEAN])
            for name, likenesses in reconstructions.similarities.items()
        },
    }
    stored_facts: dict[str, Json] = {
        **summary,
        "patients": [cohort.patients[int(rows.patient[row])] for row in index],
        "figures": {
            name: [[_finite_or_none(f) for f in likeness_figures] for likeness_figures in likenesses]
            for name, likenesses in reconstructions.similarities.items()
        },
        "masks": start.target is not None,
    }
    tensors = {"image": torch.stack([rows.x[row] for row in index]).cpu(), **reconstructions.pictures}
    _attack_folder(hospital).write(_result_name(scores_file), to_bytes(Message(tensors, stored_facts)))
    return summary


def inversion_sheets(hospital: Hospital, methods: Sequence[TableLine]) -> Iterator[Picture]:
    """A sheet per method on whose model here the attack was tried; a row per image."""
    for method in methods:
        name = _result_name(scores_name_of(method))
        if _attack_folder(hospital).has(name):
            stored = from_bytes(_attack_folder(hospital).read(name))
            yield _draw_sheet(method["label"], stored, cohort_of(hospital, method["cohort"]))


def select_images(rows: Rows, images: int) -> list[int]:
    """Indices in `rows` of the middle image of each of the first patients; at most `images`."""
    places = ((rows.patient == patient).nonzero()[:, 0] for patient in torch.unique(rows.patient)[:images])
    return [int(patient_rows[len(patient_rows) // 2]) for patient_rows in places]


def _reconstruct_images(
    hospital: Hospital, start: Opening, module: nn.Module, rows: Rows, index: Sequence[int], settings: Inversion
) -> Drawn:
    """Every attack on every image."""
    pixels = _pixel_bounds(rows.x)
    images_by_attack: dict[str, list[Tensor]] = {}
    for place in index:
        hospital.pause()
        attacks = _attack_image(hospital, start, module, rows, place, settings, pixels)
        for name, image in {MEAN: _mean_without_patient(rows, place), **attacks}.items():
            images_by_attack.setdefault(name, []).append(image.detach().cpu())
    truth = torch.stack([rows.x[place] for place in index]).cpu()
    likenesses = {
        name: [compute_likeness(a, b) for a, b in zip(truth, drawn, strict=True)]
        for name, drawn in images_by_attack.items()
    }
    return Drawn({name: torch.stack(drawn) for name, drawn in images_by_attack.items()}, likenesses)


def _attack_image(
    hospital: Hospital, start: Opening, module: nn.Module, rows: Rows, place: int, settings: Inversion, pixels: Pixels
) -> dict[str, Tensor]:
    """What is drawn of one image, by attack."""
    x, y = rows.x[place], rows.y[place]
    task = replace(start.task, smoothing=start.work.label_smoothing)  # the loss of the gradients that training shows
    shape = tuple(x.shape)
    ways: dict[str, Protection | None] = {PLAIN: None}
    ways |= {} if start.protection is None else {PROTECTED: start.protection}

    def make_generator() -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(start.seed, hospital.name, "inversion", place))

    made: dict[str, Tensor] = {}
    for name, protection in ways.items():
        # This noise protects nobody, since the result stays here; a secret seed makes it repeatable.
        noise = random.Random(derive_seed(hospital.bootstrap_seed(), "inversion", place)).randbytes  # noqa: S311
        gradient = shown_gradient(module, task.objective_of_method, x, y, protection, source=noise)
        made[name] = invert_gradient(
            module, task.objective_of_method, gradient, shape, y, settings, make_generator(), pixels=pixels
        )

    def features(image: Tensor) -> Tensor:
        seen: Tensor = module(image).features
        return seen

    module.eval()
    with torch.no_grad():
        target = features(x[None])
    return made | {
        FEATURES: invert_features(module, features, target, shape, settings, make_generator(), pixels=pixels)
    }


def _pixel_bounds(x: Tensor) -> Pixels:
    """Bounds and mean of a hospital's images, without the few brightest pixels, which would set the bound too high."""
    sample = x.flatten()[:: max(1, x.numel() // ENOUGH)].cpu().numpy()
    low, high = np.quantile(sample.astype(np.float64), [1 - WHITE, WHITE])
    return Pixels(float(low), float(high), float(sample.mean()))


def _mean_without_patient(rows: Rows, place: int) -> Tensor:
    """The mean training image of all other patients; zeros if there is no other."""
    other_rows = rows.patient != rows.patient[place]
    return rows.x[other_rows].mean(dim=0) if bool(other_rows.any()) else torch.zeros_like(rows.x[place])


def _mean_figures(likenesses: Sequence[Likeness], floor: Sequence[Likeness]) -> dict[str, Json]:
    """Mean similarity of an attack, and how often it is better than the mean image."""
    psnr, ssim = (math.fsum(values) / len(values) for values in zip(*likenesses, strict=True))
    better = sum(likeness_of_image.is_above(low) for likeness_of_image, low in zip(likenesses, floor, strict=True))
    return {"psnr": _finite_or_none(psnr), "ssim": _finite_or_none(ssim), "better": better}


def _finite_or_none(figure: float) -> float | None:
    """The number, or None where JSON has none."""
    return figure if math.isfinite(figure) else None


def _draw_sheet(label: str, stored: Message, cohort: Cohort) -> Picture:
    """The images of an attack next to the patients' own."""
    attack_facts, figures = as_mapping(stored.facts["attacks"]), as_mapping(stored.facts["figures"])
    attacks = [name for name in ATTACKS if name in attack_facts]
    colour = kind_of(cohort) != "slices"  # channels of slices may be neighbouring slices
    tiles = []
    for row, patient in enumerate(as_list(stored.facts["patients"])):
        tiles.append(Tile(_middle_plane(stored.tensors["image"][row], colour), str(patient)[:8]))
        for name in attacks:
            caption = f"{name}: {_similarity_text(*as_list(as_list(figures[name])[row]))}"
            tiles.append(Tile(_middle_plane(stored.tensors[name][row], colour), caption))
    columns = 1 + len(attacks)
    grey = [tile.image for tile in tiles[::columns] if tile.image.ndim == 2]
    window = (float(np.min(grey)), float(np.quantile(np.stack(grey).astype(np.float64), WHITE))) if grey else None
    title = f"{label}: what could be drawn of training images"
    sheet = contact_sheet(tiles, title=title, columns=columns, window=window)
    means = "; ".join(_describe_mean(name, as_mapping(attack_facts[name])) for name in attacks)
    caption = CAPTION.format(truth="mask" if stored.facts["masks"] else "label")
    text = f"{caption} Means over {stored.facts['images']}: {means}. {sheet.caption}".strip()
    return replace(sheet, caption=text, method=label)


def _describe_mean(name: str, means: Mapping[str, Json]) -> str:
    """The mean similarity of an attack, in words."""
    comparison = "" if name == MEAN else f", {means['better']} better than the mean image"
    return f"{name} {_similarity_text(means['psnr'], means['ssim'])}{comparison}"


def parse_figure(value: Json) -> float:
    """A figure of an attack; null in the facts becomes NaN."""
    return number_of({"figure": value}, "figure", math.nan)


def _similarity_text(psnr: Json, ssim: Json) -> str:
    """ "PSNR 12.3 dB, SSIM 0.456"; an en dash for a missing value."""
    decibel = "–" if psnr is None else f"{parse_figure(psnr):.1f}"
    return f"PSNR {decibel} dB, SSIM {format_number(parse_figure(ssim))}"


def _middle_plane(image: Tensor, colour: bool) -> NDArray[np.float32]:
    """(H, W), or (H, W, 3) in [0, 1], of (C, *spatial): the middle plane of a volume, the middle one of neighbours."""
    image = image[:, image.shape[1] // 2] if image.dim() == 4 else image
    if colour and len(image) == 3:
        return np.asarray(((image.permute(1, 2, 0) + 1) / 2).clamp(0, 1).numpy())
    return np.asarray(image[len(image) // 2].numpy())


def _attack_folder(hospital: Hospital) -> DiskFolder:
    """The folder with results of attacks."""
    return DiskFolder(hospital.root / "scores")


def _result_name(scores_file: str) -> str:
    """The file of a model's reconstructions."""
    return f"{scores_file.removesuffix('.safetensors')}.inversion.safetensors"
