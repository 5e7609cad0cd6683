"""The phantom's scanners: turn an anatomy into the ADC map that a hospital would export.

Signal: kurtosis (Jensen et al., Magn Reson Med 2005, doi:10.1002/mrm.20508) with intravoxel incoherent motion (Le Bihan
et al., Radiology 1988); b biased by gradient non-linearity (Bammer et al., Magn Reson Med 2003); Nyquist ghost and
susceptibility stretch of echo-planar imaging; k-space cut to the matrix; complex Gaussian noise and magnitude averages,
hence a Rician floor (Gudbjartsson and Patz, Magn Reson Med 1995). Then the vendor's processing: smoothing, a linear fit
to the logarithm, masking of the background.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from pipelines.data.study import Affine, Array
from pipelines.phantom.organs import GRID, PIXEL_MM, SIGNIFICANT
from pipelines.phantom.patients import Anatomy, Mask, PhantomSource
from privacy.settings_error import Problem, refuse, unmet

MATRIX = 48  # pixels of an exported image along each side
STEP = GRID // MATRIX
PSEUDO_DIFFUSION = 0.012  # D* of IVIM, mm²/s
LARGEST_ADC = 4095.0  # 1e-6 mm²/s; 12 bits, as vendors store it
ISOCENTRE_MM = (28.0, -30.0)  # (x, y) from the image's centre: the prostate is seldom at the magnet's isocentre
GRADIENT_REACH_MM = 60.0


@dataclass(frozen=True, kw_only=True)
class Scanner:
    """A hospital's acquisition and export. The defaults are an ideal scanner without noise or artefacts.

    b_values: s/mm², at least two different ones. snr: signal of the peripheral zone at b = 0 over the noise's standard
    deviation in each of the two channels, for one average; inf = no noise. averages: magnitude images that are
    averaged. matrix: acquired samples along each side, at most 48, zero-filled to 48. ghost: share of the signal.
    gradient_nonlinearity: relative loss of b at 60 mm from the isocentre. distortion_mm: greatest shift along the
    phase-encoding direction (anterior-posterior), at the rectum. endorectal: with an endorectal coil and its balloon.
    smoothing: standard deviation of the vendor's Gaussian filter, in pixels. threshold: pixels below this share of the
    volume's 99th percentile at the lowest b are set to 0; 0 = unmasked. zoom: the field of view is 72 mm / zoom.
    window: the largest ADC that is exported, 1e-6 mm²/s. gamma: exponent of the export's tone curve, 1 = linear.
    rescale: whether a linear export has RescaleSlope; without it stored values are in 1e-6 mm²/s.
    real_world: whether RealWorldValueMappingSequence is written. unit: of linearly rescaled values.
    axes: the storage order of NIfTI files.

    Raises:
        ValueError: parameters are out of range; one message names all of them.
    """

    b_values: tuple[float, ...]
    snr: float = math.inf
    averages: int = 1
    matrix: int = MATRIX
    ghost: float = 0.0
    gradient_nonlinearity: float = 0.0
    distortion_mm: float = 0.0
    endorectal: bool = False
    smoothing: float = 0.0
    threshold: float = 0.0
    zoom: float = 1.0
    window: float = LARGEST_ADC
    gamma: float = 1.0
    rescale: bool = True
    real_world: bool = False
    unit: Literal["1e-6 mm2/s", "1e-3 mm2/s"] = "1e-6 mm2/s"
    axes: Literal["RAS", "LPS"] = "RAS"
    manufacturer: str = "Phantom"
    model: str = "Ideal"
    field_strength_t: float = 3.0
    institution: str = "Phantom Hospital"

    def __post_init__(self) -> None:
        problems = unmet(
            self,
            snr=(self.snr > 0, "greater than 0"),
            averages=(self.averages >= 1, "at least 1"),
            gamma=(self.gamma >= 1, "at least 1"),
        )
        problems += [
            Problem((name,), f"must {allowed}, found {value}")
            for name, value, fine, allowed in (
                ("b_values", self.b_values, len(set(self.b_values)) > 1, "hold two different values"),
                ("b_values", self.b_values, min(self.b_values, default=0) >= 0, "not be negative"),
                ("matrix", self.matrix, 8 <= self.matrix <= MATRIX, f"lie in 8..{MATRIX}"),
                ("zoom", self.zoom, 0.5 <= self.zoom <= 1.5, "lie in 0.5..1.5"),
                ("window", self.window, 0 < self.window <= LARGEST_ADC, f"lie in (0, {LARGEST_ADC:g}]"),
            )
            if not fine
        ]
        refuse(problems)

    @property
    def per_unit(self) -> float:
        """The value of 1e-6 mm²/s in the scanner's unit."""
        return 1e-3 if self.unit == "1e-3 mm2/s" else 1.0


SCANNERS: dict[str, Scanner] = {
    "A": Scanner(
        b_values=(50, 400, 800), snr=60, averages=2, distortion_mm=1, window=3600, real_world=True,
        manufacturer="Nordlicht Medical", model="Aurora 3", institution="Hospital A",
    ),
    "B": Scanner(
        b_values=(0, 1400), snr=24, averages=2, matrix=34, ghost=0.10, gradient_nonlinearity=0.14, distortion_mm=2,
        endorectal=True, threshold=0.07, zoom=0.9, window=2200, gamma=1.3, field_strength_t=1.5,
        manufacturer="Meridian Imaging", model="Classic 15", institution="Hospital B",
    ),
    "D": Scanner(
        b_values=(100, 1000, 2000), snr=14, averages=2, distortion_mm=2,
        manufacturer="Meridian Imaging", model="Zenith 3", institution="Hospital D",
    ),
    "P": Scanner(
        b_values=(50, 400, 800), snr=45, averages=4, distortion_mm=1, smoothing=0.7, threshold=0.05, rescale=False,
        manufacturer="Nordlicht Medical", model="Polar 3", institution="Hospital P",
    ),
    "L": Scanner(
        b_values=(0, 1400), snr=22, averages=2, ghost=0.08, gradient_nonlinearity=0.14, distortion_mm=3, zoom=0.92,
        window=2400, gamma=1.2, unit="1e-3 mm2/s", axes="LPS",
        manufacturer="Solstice Systems", model="Lumen 15", field_strength_t=1.5, institution="Hospital L",
    ),
    "E": Scanner(
        b_values=(100, 1000, 2000), snr=20, averages=2, matrix=44, ghost=0.05, gradient_nonlinearity=0.22,
        distortion_mm=2, unit="1e-3 mm2/s",
        manufacturer="Solstice Systems", model="Equinox 3", institution="Hospital E",
    ),
}  # fmt: skip


BRIGHTEST = 3500.0  # of grey values that stand for ADC


def scanner_of(source: PhantomSource) -> Scanner:
    """The hospital's scanner; with `export: grey` its files say nothing of a unit, a window or a tone curve."""
    scanner = SCANNERS[source.scanner]
    if source.export == "adc":
        return scanner
    return replace(scanner, window=LARGEST_ADC, gamma=1.0, rescale=False, real_world=False, unit="1e-6 mm2/s")


def to_grey_values(adc: Array, scanner: Scanner) -> Array:
    """ADC in 1e-6 mm²/s after the scanner's window and tone curve, as grey values in [0, 3500]."""
    share: Array = np.clip(adc / np.float32(scanner.window), 0, 1) ** np.float32(1 / scanner.gamma)
    return share * np.float32(BRIGHTEST)


class Acquired(NamedTuple):
    """A scanner's images, with masks on their grid.

    image: (slices, 48, 48) float32 in [0, 4095]; axes as in `Anatomy`; the ADC as the scanner fits it, in 1e-6 mm²/s,
    or T2-weighted grey values. lesion (clinically significant only),
    gland: (slices, 48, 48) uint8, drawn on the undistorted anatomy as radiologists draw on T2-weighted images. groups:
    the highest grade group drawn in each slice. affine: (column, row, slice) index -> mm to the patient's Right,
    Anterior, Superior.
    """

    image: Array
    lesion: Mask
    gland: Mask
    affine: Affine
    groups: tuple[int, ...]


def acquire(anatomy: Anatomy, scanner: Scanner, generator: np.random.Generator) -> Acquired:
    """Image `anatomy` with `scanner`; all randomness (noise, the ghost's phase) comes from `generator`."""
    b = np.array(scanner.b_values, np.float32)
    stretched = on_grid(anatomy, scanner, _signal(anatomy, scanner, b))
    images = receive_signal(stretched, scanner, generator)
    if scanner.smoothing:
        images = ndimage.gaussian_filter(images, (0, 0, scanner.smoothing, scanner.smoothing))
    adc = fit_adc(images, b)
    if scanner.threshold:
        lowest = images[int(b.argmin())]
        adc[lowest < scanner.threshold * np.percentile(lowest, 99)] = 0
    return frame_image(anatomy, scanner, adc)


def frame_image(anatomy: Anatomy, scanner: Scanner, image: Array) -> Acquired:
    """An image (slices, 48, 48) of this scanner's field of view, with the anatomy's masks."""
    return Acquired(
        image=image,
        lesion=mask_of(anatomy.grade == SIGNIFICANT, scanner),
        gland=mask_of(anatomy.zone > 0, scanner),
        affine=affine_of(anatomy, scanner),
        groups=tuple(anatomy.group.max(axis=(1, 2)).tolist()),
    )


def fit_adc(images: Array, b_values: Array) -> Array:
    """Fit log S = log S0 - b ADC by least squares in every pixel.

    images: (b-values, ...) magnitudes. b_values: (b-values,) in s/mm².
    Returns the ADC in 1e-6 mm²/s, kept within [0, 4095].
    """
    centred = b_values - b_values.mean()
    weights = (-1e6 * centred / (centred**2).sum()).astype(np.float32)
    logarithms = np.log(np.maximum(images, np.float32(1e-6)))
    adc: Array = np.tensordot(weights, logarithms, axes=1)
    return np.clip(adc, 0, LARGEST_ADC, out=adc)


def _millimetres() -> tuple[Array, Array]:
    """(x, y) of the anatomy's pixel centres from the image's centre, as (1, 96) and (96, 1)."""
    line = (np.arange(GRID, dtype=np.float32) - (GRID - 1) / 2) * np.float32(PIXEL_MM)
    return line[None, :], line[:, None]


def _signal(anatomy: Anatomy, scanner: Scanner, b_values: Array) -> Array:
    """Noise-free signal (b-values, slices, 96, 96) with the coil's sensitivity, on the anatomy's grid."""
    x, y = _millimetres()
    distance = ((x - ISOCENTRE_MM[0]) ** 2 + (y - ISOCENTRE_MM[1]) ** 2) / GRADIENT_REACH_MM**2
    share = 1 - np.float32(scanner.gradient_nonlinearity) * distance
    b = b_values[:, None, None, None] * share
    decay = b * (anatomy.diffusivity * np.float32(1e-6))
    tissue = np.exp(-decay + decay**2 * (anatomy.kurtosis / 6))
    blood = np.exp(b * np.float32(-PSEUDO_DIFFUSION))
    density = anatomy.density * coil(anatomy, scanner)
    signal: Array = density * (tissue + anatomy.perfusion * (blood - tissue))
    return signal


def coil(anatomy: Anatomy, scanner: Scanner) -> Array:
    """Sensitivity (slices, 96, 96), about 1 at the gland; with an endorectal coil also the signal-free balloon."""
    x, y = _millimetres()
    surface: Array = 1 + 0.004 * np.abs(x) + 0.00012 * y**2
    if not scanner.endorectal:
        return np.broadcast_to(surface, anatomy.density.shape)
    cx, cy, rx, ry = anatomy.rectum
    front = cy - ry
    near: Array = surface * (0.6 + 2.2 * np.exp(-np.hypot(x - cx, y - front) / 14))
    balloon = (((x - cx) / (rx + 4)) ** 2 + ((y - cy) / (ry + 1.5)) ** 2 < 1) & (anatomy.zone == 0)
    sensitivity: Array = np.where(balloon, 0.004, near).astype(np.float32)
    return sensitivity


def on_grid(anatomy: Anatomy, scanner: Scanner, signal: Array) -> Array:
    """Resample the signal to the scanner's field of view, stretched at the rectum in the phase-encoding direction."""
    line = (GRID - 1) / 2 + (np.arange(GRID, dtype=np.float32) - (GRID - STEP) / 2) / np.float32(scanner.zoom)
    rows, columns = np.meshgrid(line, line, indexing="ij")
    x, y = ((columns - (GRID - 1) / 2) * PIXEL_MM, (rows - (GRID - 1) / 2) * PIXEL_MM)
    cx, cy, _, ry = anatomy.rectum
    offset = (y - (cy - ry)) / 11
    strength = scanner.distortion_mm * (1.0 if anatomy.gas or scanner.endorectal else 0.4)
    shift = strength * np.exp(-0.5 * (((x - cx) / 13) ** 2 + offset**2))
    jacobian = (1 - shift * offset / 11).astype(np.float32)
    where = np.stack([rows + shift / PIXEL_MM, columns])
    flat = signal.reshape(-1, GRID, GRID)
    warped = np.stack([ndimage.map_coordinates(image, where, order=1, mode="nearest") for image in flat])
    stretched: Array = (warped * jacobian).reshape(signal.shape)
    return stretched


def receive_signal(signal: Array, scanner: Scanner, generator: np.random.Generator) -> Array:
    """Magnitude images (b-values, slices, 48, 48): ghost, cropped k-space, complex noise, magnitude averages."""
    complex_signal = signal.astype(np.complex64)
    if scanner.ghost:
        phase = np.exp(1j * generator.uniform(0, 2 * np.pi, (1, signal.shape[1], 1, 1))).astype(np.complex64)
        complex_signal += np.float32(scanner.ghost) * phase * np.roll(complex_signal, GRID // 2, axis=-2)
    k_space = scipy.fft.fftshift(scipy.fft.fft2(complex_signal), axes=(-2, -1)) / np.float32(STEP**2)
    start = (GRID - scanner.matrix) // 2
    cut = k_space[..., start : start + scanner.matrix, start : start + scanner.matrix]
    if math.isinf(scanner.snr):
        return np.abs(_image(cut))
    deviation = np.float32(MATRIX**2 / scanner.matrix / scanner.snr)
    total = np.zeros((*signal.shape[:2], MATRIX, MATRIX), np.float32)
    for _ in range(scanner.averages):
        noise = generator.standard_normal((*cut.shape, 2), np.float32).view(np.complex64)[..., 0]
        total += np.abs(_image(cut + deviation * noise))
    total /= np.float32(scanner.averages)
    return total


def _image(k_space: NDArray[np.complex64]) -> NDArray[np.complex64]:
    """Zero-fill centred k-space to 48 x 48 and transform it."""
    before = (MATRIX - k_space.shape[-1]) // 2
    full = np.zeros((*k_space.shape[:-2], MATRIX, MATRIX), np.complex64)
    full[..., before : before + k_space.shape[-2], before : before + k_space.shape[-1]] = k_space
    image: NDArray[np.complex64] = scipy.fft.ifft2(scipy.fft.ifftshift(full, axes=(-2, -1)))
    return image


def mask_of(where: NDArray[np.bool_], scanner: Scanner) -> Mask:
    """A mask of the anatomy on the scanner's grid: 1 where most of a pixel is inside."""
    line = (GRID - 1) / 2 + (np.arange(MATRIX) - (MATRIX - 1) / 2) * STEP / scanner.zoom
    centres = np.stack(np.meshgrid(line, line, indexing="ij"))
    share = [ndimage.map_coordinates(plane.astype(np.float32), centres, order=1, mode="nearest") for plane in where]
    return (np.stack(share) >= 0.5).astype(np.uint8)


def affine_of(anatomy: Anatomy, scanner: Scanner) -> Affine:
    """The scanner's grid has the anatomy's centre and axes, and pixels of 1.5 mm / zoom."""
    slices = anatomy.zone.shape[0]
    axes = anatomy.affine[:3, :3] * (STEP / scanner.zoom, STEP / scanner.zoom, 1)
    centre = anatomy.affine @ [(GRID - 1) / 2, (GRID - 1) / 2, (slices - 1) / 2, 1]
    affine = np.eye(4)
    affine[:3, :3] = axes
    affine[:3, 3] = centre[:3] - axes @ [(MATRIX - 1) / 2, (MATRIX - 1) / 2, (slices - 1) / 2]
    return affine
