"""A study's translation on its own grid: only the change that the translator makes is interpolated, never the image.

The translator's network sees axial slices of one spacing and size. A native slice is brought onto that spacing over its
whole field of view, as training images were (`geometry.resample`), and the network looks at it through windows of the
training size, half of which overlap, weighted by a Gaussian (Isensee et al., nnU-Net, Nature Methods 2021; MONAI). Then
T(x) - x is interpolated linearly back to the native grid and added to the native values. So detail finer than the
network's pixels stays as acquired, and the file's geometry is unchanged.

A translator of intensities alone is a curve per patient. Its numbers (mean, percentiles, histogram) come from slices
cropped as in training, and the resulting curve is applied to every native pixel.

Results are clipped to the range of the translator's scale. Values outside that range stay unchanged, because the
network saw only the end of the range in their place; no value inside passes them. ADC that noise made negative stays
negative. Background, where the file says 0, stays 0. A study in no unit has signals above 0 only, if it had none
below: none becomes darker than its darkest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harmonize.cyclegan import CycleGan
from harmonize.own import BACKGROUND
from harmonize.translation import AnyTranslator, Randomized
from pipelines.data.grids.geometry import Floats, grid_of, reading_order, resample_volume, spacing_of
from pipelines.data.images import Slices
from pipelines.data.prepare import prepare_slices
from pipelines.data.study import Affine, Array, Volume
from pipelines.models.translator_file import TranslatorFile

OVERLAP = 0.5
WINDOWS = 16  # in one batch
RIM = 2  # pixels by which the change is extrapolated: the outermost native pixels lie up to one beyond its grid
Change = Callable[[Tensor], Tensor]


class Seen(NamedTuple):
    """A study's slices, cropped as in training. x: (K, 1, s, s) in network space; position: (K,) slice index."""

    x: Tensor
    position: NDArray[np.float32]


class Applied(NamedTuple):
    """change (I, J, K) float32, in the unit of the translator's images, on the native grid. limited: share of the
    foreground whose change was clipped to the scale's range.
    """

    change: Array
    limited: float


def apply_translator(
    image: Volume,
    background: NDArray[np.bool_],
    file: TranslatorFile,
    gland: Volume | None,
    *,
    least: float = -math.inf,
) -> Applied:
    """The change that a translator makes to a study.

    image: native values (I, J, K) in the unit of the translator's images. background: (I, J, K), what must stay.
    gland: mask on any grid, about which training images were cut; None = about the image's centre. least: the darkest
    value that may be written, where the image's unit has one above the scale's.

    Raises:
        Unusable: as `prepare_slices`.
        ValueError: the translator does not work on slices.
    """
    if not isinstance(file.images, Slices):
        raise ValueError(f"translators of slices can be applied to studies, found images of kind {file.images.kind}")
    with torch.inference_mode():
        seen = _as_learnt(image, file, file.images, gland)
        if isinstance(file.settings, CycleGan | Randomized):
            change = _through_windows(image, file, file.images, seen)
        else:
            change = _along_curves(image, file, seen)
    return _limit_change(image, background, change, (max(file.scale.low, least), file.scale.high))


def _limit_change(image: Volume, background: NDArray[np.bool_], change: Array, ends: tuple[float, float]) -> Applied:
    """The change within the range of the images, and none in the background."""
    values = np.asarray(image.values, np.float32)
    low, high = ends
    allowed = np.clip(change, low - values, high - values)
    allowed[background | (values < low) | (values > high)] = 0
    inside = ~background
    cut = np.abs(allowed - change)[inside] > 1e-6 * (high - low)
    return Applied(allowed, float(cut.mean()) if cut.size else 0.0)


def looks_at_study(file: TranslatorFile) -> bool:
    """Whether a slice's translation depends on the study's other slices."""
    if isinstance(file.settings, CycleGan):
        return file.settings.with_variant().keep_mean != "none"
    return not isinstance(file.settings, Randomized)


def _as_learnt(image: Volume, file: TranslatorFile, images: Slices, gland: Volume | None) -> Seen:
    """The study's slices as the translator saw them in training."""
    slices = prepare_slices(
        image, lesion=None, gland=gland, images=images if gland is not None else replace(images, slices="all")
    )
    return Seen(file.scale.into(torch.from_numpy(slices.images)), slices.position)


def _through_windows(image: Volume, file: TranslatorFile, images: Slices, seen: Seen) -> Array:
    """The change of each slice, made in windows of the size that the translator learnt from."""
    stack = reading_order(image)
    grid, shape = covering(stack.affine, (stack.values.shape[0], stack.values.shape[1]), images.spacing_mm)
    planes = resample_volume(stack, grid, (*shape, stack.values.shape[2]), 1).astype(np.float32, copy=False)
    x = file.scale.into(torch.from_numpy(np.ascontiguousarray(planes.transpose(2, 1, 0)))[:, None])
    change = translate_in_windows(
        x, changing(file, seen), images.size, background=float(file.scale.into(torch.zeros(())))
    )
    wide = np.pad(change[:, 0].numpy(), ((0, 0), (RIM, RIM), (RIM, RIM)), mode="edge").transpose(2, 1, 0)
    outwards = np.eye(4)
    outwards[:2, 3] = -RIM
    return _onto(Volume(wide * _per_step(file), grid @ outwards), image)


def changing(file: TranslatorFile, seen: Seen) -> Change:
    """T(x) - x of windows (n, 1, s, s) in network space.

    seen: the study's slices, cropped as in training; the shift of `keep_mean` is computed from them once, so that all
    windows are shifted alike.
    """
    settings = file.settings
    unshifted, by = settings, 0.0
    if isinstance(settings, CycleGan) and looks_at_study(file):
        unshifted = replace(settings.with_variant(), keep_mean="none")
        by = _shift(file, unshifted, seen.x)

    def change(x: Tensor) -> Tensor:
        y = unshifted.translate(file.params, x, _one(x))
        return torch.where(y <= BACKGROUND, y, y + by).clamp(-1.0, 1.0) - x

    return change


def _shift(file: TranslatorFile, unshifted: AnyTranslator, x: Tensor) -> float:
    """The shift of `keep_mean` for a study's slices, from pixels that were not clipped."""
    alone, moved = unshifted.translate(file.params, x, _one(x)), file.settings.translate(file.params, x, _one(x))
    free = (alone > BACKGROUND) & (moved > -1.0) & (moved < 1.0)
    return float((moved - alone)[free].median()) if bool(free.any()) else 0.0


def _one(x: Tensor) -> Tensor:
    """Patient indices of zero: all examples are of one patient."""
    return torch.zeros(len(x), dtype=torch.int64)


def translate_in_windows(x: Tensor, change: Change, size: int, *, background: float) -> Tensor:
    """The change (K, 1, H, W) of slices of any height and width, assembled from windows of `size` x `size`.

    background: the value outside the image, as in training.
    """
    from monai.inferers import sliding_window_inference  # slow to import

    result: Tensor = sliding_window_inference(
        x, (size, size), WINDOWS, change, overlap=OVERLAP, mode="gaussian", padding_mode="constant", cval=background
    )
    return result


def covering(affine: Affine, shape: tuple[int, int], spacing_mm: float) -> tuple[Affine, tuple[int, int]]:
    """A grid on the same slices with square pixels, as many as there is room for between the outer pixels' centres.

    affine: of a volume in reading order, shape: its columns and rows.
    """
    ratio: Floats = spacing_mm / spacing_of(affine)[:2]
    last = np.asarray(shape) - 1
    counts = np.floor(last / ratio + 1e-6).astype(int) + 1
    change = np.diag([ratio[0], ratio[1], 1.0, 1.0])
    change[:2, 3] = last / 2 - ratio * (counts - 1) / 2
    grid: Affine = affine @ change
    return grid, (int(counts[0]), int(counts[1]))


def _along_curves(image: Volume, file: TranslatorFile, seen: Seen) -> Array:
    """The change by curves of values, which the translator fits to a study or a slice."""
    x, y = seen.x, file.settings.translate(file.params, seen.x, _one(seen.x))
    stack = reading_order(image)
    values = file.scale.into(torch.from_numpy(np.asarray(stack.values, np.float32).copy())).numpy()
    change = np.empty_like(values)
    curve_per_slice = getattr(file.settings, "over", "patient") == "image"  # a curve for each slice, or one for all
    for position in range(values.shape[2]):
        rows = [int(np.abs(seen.position - position).argmin())] if curve_per_slice else slice(None)
        places, first = np.unique(x[rows].numpy(), return_index=True)
        moved = (y[rows] - x[rows]).numpy().ravel()[first]
        change[:, :, position] = np.interp(values[:, :, position], places, moved)
    return _onto(Volume(change * _per_step(file), stack.affine), image)


def _per_step(file: TranslatorFile) -> np.float32:
    """The change of a value for a change of 1 in the network's range."""
    return np.float32((file.scale.high - file.scale.low) / 2)


def _onto(change: Volume, image: Volume) -> Array:
    """The change on the grid of the image."""
    return resample_volume(change, *grid_of(image), 1).astype(np.float32, copy=False)
