"""The phantom's T2-weighted images: a turbo spin echo of the same anatomy, by the same scanners, in arbitrary units.

    S = PD (1 - exp(-TR / T1)) exp(-TE / T2)                                                           (1)

Zones and tumours: T2 of Simpkin et al., Br J Radiol 2013, doi:10.1259/bjr.20120469 (149 +- 49 ms in the peripheral
zone, 125 +- 26 in the transition zone, 97 +- 23 in tumours, which correlate with the ADC by 0.52, 0.30 and 0.24); the
transition zone is set darker, as in the images of ProstateX, and tumours of higher grade a little more than others:
their T2 tells grades apart with an AUC of 0.74 in Mai et al., Invest Radiol 2019, doi:10.1097/RLI.0000000000000520. T1
at 3 T of prostate, muscle, fat and marrow: de Bazelaire et al., Radiology 2004, doi:10.1148/radiol.2303021331, which is
21 % longer than at 1.5 T. Their fat (68 ms) and marrow are brighter in echo trains than in single echoes (Henkelman et
al., J Magn Reson Imaging 1992, doi:10.1002/jmri.1880020511), and muscle's 29 ms gain from stimulated echoes, hence
longer T2 here. Other values are assumed. Then coil and shading, the matrix, complex noise and its magnitude as in
`scanner.py`; the vendor's filter; a window, a tone curve, and a gain that each study has anew. Echo trains do not
distort; noise is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from pipelines.data.study import Array
from pipelines.phantom.organs import GRID, PIXEL_MM, Kind
from pipelines.phantom.patients import Anatomy, texture
from pipelines.phantom.scanner import MATRIX, Acquired, Scanner, coil, frame_image, on_grid, receive_signal
from privacy.settings_error import out_of_range, refuse

LARGEST = 4095.0  # 12 bits
T1_AT_LOW_FIELD = 1 / 1.21  # of that at 3 T
GAIN_SCATTER = 0.25  # of the logarithm, between studies
HALF_MM = GRID * PIXEL_MM / 2


class Relaxing(NamedTuple):
    """density: of protons, water = 1.1. t1, t2: ms, at 3 T. scatter: between patients, of the logarithm of T2. tie: T2
    goes as diffusivity / usual to this power.
    """

    density: float
    t1: float
    t2: float
    scatter: float = 0.1
    tie: float = 0.0
    usual: float = 1.0


RELAXING: Mapping[Kind, Relaxing] = {
    Kind.FAT: Relaxing(1.1, 382, 170),
    Kind.MUSCLE: Relaxing(0.9, 898, 42),
    Kind.BONE: Relaxing(0.75, 586, 120, 0.2),
    Kind.URINE: Relaxing(1.1, 4000, 1200),
    Kind.RECTAL_WALL: Relaxing(0.9, 1300, 60, 0.15),
    Kind.STOOL: Relaxing(0.7, 900, 60, 0.4),
    Kind.GAS: Relaxing(0.012, 1000, 50),
    Kind.PERIPHERAL: Relaxing(1.0, 1597, 149, 0.2, 1.5, 1650),
    Kind.TRANSITION: Relaxing(0.9, 1597, 112, 0.16, 1.0, 1320),
    Kind.STROMA: Relaxing(0.85, 1400, 68),
    Kind.NODULE: Relaxing(0.88, 1597, 105, 0.2, 1.5, 1010),
    Kind.INFLAMED: Relaxing(0.95, 1597, 118, 0.15, 1.0, 1250),
    Kind.LESION: Relaxing(0.92, 1597, 90, 0.18, 0.7, 830),
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A hospital's turbo spin echo. The defaults after `echo_ms` are an ideal one.

    repetition_ms, echo_ms: TR, TE. echo_train: echoes a shot, for the header. snr: of a signal of 1 (equation 1), in
    each of two channels, for one average. averages: magnitude images that are averaged. matrix: acquired samples along
    each side, at most 48. corrected: power of the coil's sensitivity that the vendor divides out, 1 = all. shading:
    logarithm of the signal's change from the image's middle to its bright side, which is anterior, roughly. smoothing:
    deviation of a Gaussian filter, pixels. sharpening: times what a filter of one pixel takes away is added. window:
    signals above are cut to it. gamma: exponent of the tone curve, 1 = linear. gain: grey value of a signal of 1.

    Raises:
        ValueError: parameters are out of range; one message names all of them.
    """

    repetition_ms: float
    echo_ms: float
    echo_train: int = 20
    snr: float = math.inf
    averages: int = 1
    matrix: int = MATRIX
    corrected: float = 1.0
    shading: float = 0.0
    smoothing: float = 0.0
    sharpening: float = 0.0
    window: float = 2.0
    gamma: float = 1.0
    gain: float = 1000.0

    def __post_init__(self) -> None:
        between = {"repetition_ms": (500, 20_000), "echo_ms": (5, 500), "corrected": (0, 1), "window": (0.1, 10)}
        between |= {"smoothing": (0, 3), "sharpening": (0, 3), "gamma": (0.5, 3), "gain": (1, 4095)}
        refuse(out_of_range(self, **between))


PROTOCOLS: Mapping[str, Protocol] = {
    "A": Protocol(
        repetition_ms=5660, echo_ms=104, echo_train=25, snr=45, averages=2, corrected=0.8, shading=0.15, gain=700
    ),
    "B": Protocol(
        repetition_ms=3800, echo_ms=92, echo_train=16, snr=20, averages=2, matrix=38, corrected=0.2, shading=0.1,
        window=1.4, gamma=1.2, gain=1500,
    ),
    "D": Protocol(repetition_ms=4200, echo_ms=80, snr=30, averages=1, corrected=0.5, shading=0.45, gain=420),
    "P": Protocol(
        repetition_ms=5200, echo_ms=101, echo_train=23, snr=40, averages=3, corrected=1.0, smoothing=0.5, gain=520
    ),
    "L": Protocol(
        repetition_ms=3300, echo_ms=136, echo_train=28, snr=22, averages=2, matrix=40, corrected=0.0, shading=0.4,
        sharpening=0.7, window=0.75, gamma=1.5, gain=2400,
    ),
    "E": Protocol(
        repetition_ms=6200, echo_ms=118, echo_train=24, snr=24, averages=2, matrix=44, corrected=0.4, shading=0.3,
        sharpening=0.4, window=1.1, gamma=0.8, gain=1700,
    ),
}  # fmt: skip
"""Of the scanners with these names."""


class Tissues(NamedTuple):
    """What equation 1 needs of one anatomy, each (slices, 96, 96): proton density, and T1 and T2 in ms."""

    density: Array
    t1: Array
    t2: Array


def relaxation(anatomy: Anatomy, field_strength_t: float, generator: np.random.Generator) -> Tissues:
    """Proton density and relaxation times of an anatomy; what they do not share with its diffusion is drawn by
    `generator`: a patient's deviation for each kind of tissue, and texture.
    """
    table = np.array([RELAXING[kind] for kind in Kind], np.float32)
    density, t1, t2, scatter, tie, usual = (table[anatomy.kind, column] for column in range(table.shape[1]))
    factors = np.exp(generator.standard_normal(len(Kind)).astype(np.float32).clip(-2.5, 2.5))[anatomy.kind] ** scatter
    tied = (anatomy.diffusivity / usual) ** tie
    woven = texture(generator, len(anatomy.kind), fine=0.06, coarse=0.06)
    longer = np.float32(1.0 if field_strength_t > 2 else T1_AT_LOW_FIELD)
    return Tissues(density, t1 * longer, (t2 * factors * tied * woven).astype(np.float32))


def acquire_t2w(
    anatomy: Anatomy, tissues: Tissues, scanner: Scanner, protocol: Protocol, generator: np.random.Generator
) -> Acquired:
    """Grey values of `anatomy` in [1, 4095], since 0 is outside of an image; noise, the shading's side and the gain
    come from `generator`.
    """
    side, louder = generator.normal(-math.pi / 2, 0.4), math.exp(GAIN_SCATTER * generator.normal())
    spin_echo = replace(
        scanner,
        distortion_mm=0.0,
        ghost=0.0,
        **{name: getattr(protocol, name) for name in ("snr", "averages", "matrix")},
    )
    signal = _signal(tissues, protocol) * _shade(anatomy, scanner, protocol, side)
    image = receive_signal(on_grid(anatomy, spin_echo, signal[None].astype(np.float32)), spin_echo, generator)[0]
    if protocol.smoothing:
        image = ndimage.gaussian_filter(image, (0, protocol.smoothing, protocol.smoothing))
    if protocol.sharpening:
        image = image + np.float32(protocol.sharpening) * (image - ndimage.gaussian_filter(image, (0, 1, 1)))
    shown = protocol.window * (image / protocol.window).clip(0, 1) ** (1 / protocol.gamma)
    grey = (protocol.gain * louder * shown).clip(1, LARGEST).astype(np.float32)
    return frame_image(anatomy, spin_echo, grey)


def _signal(tissues: Tissues, protocol: Protocol) -> Array:
    """Equation 1."""
    recovered = 1 - np.exp(-protocol.repetition_ms / tissues.t1)
    signal: Array = tissues.density * recovered * np.exp(-protocol.echo_ms / tissues.t2)
    return signal


def _shade(anatomy: Anatomy, scanner: Scanner, protocol: Protocol, side: float) -> Array:
    """What is left of the coil's sensitivity, and a slope towards `side` (angle from the patient's left)."""
    line = (np.arange(GRID, dtype=np.float32) - (GRID - 1) / 2) * np.float32(PIXEL_MM / HALF_MM)
    slope = line[None, :] * math.cos(side) + line[:, None] * math.sin(side)
    left: Array = coil(anatomy, scanner) ** (1 - protocol.corrected) * np.exp(protocol.shading * slope)
    return left
