"""A study's translation on its own grid: only the change that the translator makes is interpolated, never the image.

The translator's network sees axial slices of one spacing and size. A native slice is brought onto that spacing over its
whole field of view, as training images were (`geometry.resample`), and the network processes windows of the training
size that overlap by half, weighted by a Gaussian (Isensee et al., nnU-Net, Nature Methods 2021; MONAI). Then
T(x) - x is interpolated linearly back to the native grid and added to the native values. So detail finer than the
network's pixels stays as acquired, and the file's geometry is unchanged.

A translator of intensities alone is a curve per patient. Its numbers (mean, percentiles, histogram) come from slices
cropped as in training, and the resulting curve is applied to every native pixel.

Results are clipped to the range of the translator's scale. Values outside that range stay unchanged, because the
network saw only the end of the range in their place; no value inside passes them. ADC that noise made negative stays
negative. Background (0 in the file) stays 0. A study without a unit and without negative values gets none: no value
becomes lower than its lowest foreground value.
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
RIM = 2  # pixels by which the change is extrapolated: the outermost native pixels lie up to one pixel outside its grid
Change = Callable[[Tensor], Tensor]


class CroppedSlices(NamedTuple):
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

    image: native values (I, J, K) in the unit of the translator's images. background: (I, J, K), pixels that stay
    unchanged. gland: mask on any grid, about which training images were cropped; None = about the image's centre.
    least: the least value that may be written, if it is above the scale's.

    Raises:
        Unusable: as `prepare_slices`.
        ValueError: the translator does not work on slices.
    """
    if not isinstance(file.images, Slices):
        raise ValueError(f"translators of slices can be applied to studies, found images of kind {file.images.kind}")
    with torch.inference_mode():
        seen = _crop_as_trained(image, file, file.images, gland)
        if isinstance(file.settings, CycleGan | Randomized):
            change = _translate_windows(image, file, file.images, seen)
        else:
            change = _apply_curves(image, file, seen)
    return _limit_change(image, background, change, (max(file.scale.low, least), file.scale.high))


def _limit_change(image: Volume, background: NDArray[np.bool_], change: Array, ends: tuple[float, float]) -> Applied:
    """The change, clipped so that results stay in the range (`ends`), and 0 outside it and in the background."""
    values = np.asarray(image.values, np.float32)
    low, high = ends
    allowed = np.clip(change, low - values, high - values)
    allowed[background | (values < low) | (values > high)] = 0
    inside = ~background
    was_clipped = np.abs(allowed - change)[inside] > 1e-6 * (high - low)
    return Applied(allowed, float(was_clipped.mean()) if was_clipped.size else 0.0)


def depends_on_study(file: TranslatorFile) -> bool:
    """Whether a slice's translation depends on the study's other slices."""
    if isinstance(file.settings, CycleGan):
        return file.settings.with_variant().keep_mean != "none"
    return not isinstance(file.settings, Randomized)


def _crop_as_trained(image: Volume, file: TranslatorFile, images: Slices, gland: Volume | None) -> CroppedSlices:
    """The study's slices, cropped and scaled as in training."""
    cropped_slices = prepare_slices(
        image, lesion=None, gland=gland, images=images if gland is not None else replace(images, slices="all")
    )
    return CroppedSlices(file.scale.into(torch.from_numpy(cropped_slices.images)), cropped_slices.position)


def _translate_windows(image: Volume, file: TranslatorFile, images: Slices, seen: CroppedSlices) -> Array:
    """The change by a network, computed in windows on its spacing and resampled to the image's grid."""
    stack = reading_order(image)
    grid, shape = build_square_grid(stack.affine, (stack.values.shape[0], stack.values.shape[1]), images.spacing_mm)
    planes = resample_volume(stack, grid, (*shape, stack.values.shape[2]), 1).astype(np.float32, copy=False)
    x = file.scale.into(torch.from_numpy(np.ascontiguousarray(planes.transpose(2, 1, 0)))[:, None])
    change = translate_in_windows(
        x, build_change(file, seen), images.size, background=float(file.scale.into(torch.zeros(())))
    )
    padded_change = np.pad(change[:, 0].numpy(), ((0, 0), (RIM, RIM), (RIM, RIM)), mode="edge").transpose(2, 1, 0)
    rim_shift = np.eye(4)
    rim_shift[:2, 3] = -RIM
    return _resample_onto(Volume(padded_change * _units_per_step(file), grid @ rim_shift), image)


def build_change(file: TranslatorFile, seen: CroppedSlices) -> Change:
    """A function that computes T(x) - x of windows (n, 1, s, s) in network space.

    seen: the study's slices, cropped as in training; the shift of `keep_mean` is computed from them once, so that all
    windows have the same shift.
    """
    settings = file.settings
    unshifted, shift = settings, 0.0
    if isinstance(settings, CycleGan) and depends_on_study(file):
        unshifted = replace(settings.with_variant(), keep_mean="none")
        shift = _compute_shift(file, unshifted, seen.x)

    def compute_change(x: Tensor) -> Tensor:
        y = unshifted.translate(file.params, x, _single_patient(x))
        return torch.where(y <= BACKGROUND, y, y + shift).clamp(-1.0, 1.0) - x

    return compute_change


def _compute_shift(file: TranslatorFile, unshifted: AnyTranslator, x: Tensor) -> float:
    """The shift of `keep_mean` for a study's slices, from pixels that were not clipped."""
    unshifted_values, shifted_values = (
        unshifted.translate(file.params, x, _single_patient(x)),
        file.settings.translate(file.params, x, _single_patient(x)),
    )
    is_unclipped = (unshifted_values > BACKGROUND) & (shifted_values > -1.0) & (shifted_values < 1.0)
    return float((shifted_values - unshifted_values)[is_unclipped].median()) if bool(is_unclipped.any()) else 0.0


def _single_patient(x: Tensor) -> Tensor:
    """Patient indices of zero: all examples are of one patient."""
    return torch.zeros(len(x), dtype=torch.int64)


def translate_in_windows(x: Tensor, change: Change, size: int, *, background: float) -> Tensor:
    """The change (K, 1, H, W) of slices of any height and width, assembled from windows of `size` x `size`.

    background: the value outside the image, as in training.
    """
    from monai.inferers import sliding_window_inference  # slow to import

    assembled_change: Tensor = sliding_window_inference(
        x, (size, size), WINDOWS, change, overlap=OVERLAP, mode="gaussian", padding_mode="constant", cval=background
    )
    return assembled_change


def build_square_grid(affine: Affine, shape: tuple[int, int], spacing_mm: float) -> tuple[Affine, tuple[int, int]]:
    """A grid on the same slices with square pixels, as many as fit between the centres of the outer pixels.

    affine: of a volume in reading order, shape: its columns and rows.
    """
    ratio: Floats = spacing_mm / spacing_of(affine)[:2]
    last = np.asarray(shape) - 1
    counts = np.floor(last / ratio + 1e-6).astype(int) + 1
    change = np.diag([ratio[0], ratio[1], 1.0, 1.0])
    change[:2, 3] = last / 2 - ratio * (counts - 1) / 2
    grid: Affine = affine @ change
    return grid, (int(counts[0]), int(counts[1]))


def _apply_curves(image: Volume, file: TranslatorFile, seen: CroppedSlices) -> Array:
    """The change by curves of intensities, read off the cropped slices and applied to every native pixel."""
    x, y = seen.x, file.settings.translate(file.params, seen.x, _single_patient(seen.x))
    stack = reading_order(image)
    values = file.scale.into(torch.from_numpy(np.asarray(stack.values, np.float32).copy())).numpy()
    change = np.empty_like(values)
    has_slice_curves = getattr(file.settings, "over", "patient") == "image"  # a curve for each slice, or one for all
    for position in range(values.shape[2]):
        rows = [int(np.abs(seen.position - position).argmin())] if has_slice_curves else slice(None)
        curve_points, first = np.unique(x[rows].numpy(), return_index=True)
        curve_changes = (y[rows] - x[rows]).numpy().ravel()[first]
        change[:, :, position] = np.interp(values[:, :, position], curve_points, curve_changes)
    return _resample_onto(Volume(change * _units_per_step(file), stack.affine), image)


def _units_per_step(file: TranslatorFile) -> np.float32:
    """The size of a step of 1 in network space, in the unit of the translator's images."""
    return np.float32((file.scale.high - file.scale.low) / 2)


def _resample_onto(change: Volume, image: Volume) -> Array:
    """The values of a change on an image's grid."""
    return resample_volume(change, *grid_of(image), 1).astype(np.float32, copy=False)
