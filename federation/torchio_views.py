"""Random views of training examples by TorchIO, declared in settings: what scanners and patients do to images.

Pérez-García, Sparks, Ourselin: TorchIO: a Python library for efficient loading, preprocessing, augmentation and
patch-based sampling of medical images in deep learning, Computer Methods and Programs in Biomedicine 208, 2021. Each
class is one of its random transforms, with its arguments, their meaning and their defaults; `p` is the probability that
an example gets it. Where one number stands for a range, it is TorchIO's: up to it, or up to it in both directions.

An image (C, [D,] H, W) is TorchIO's (C, W, H, D): axis 0 is left to right, 1 up and down, 2 through the slices, of
which a 2-D image has one. So of a 2-D image, axis 2 is left out of `axes`, and nothing moves or turns out of its plane.
Lengths are in mm where images have a spacing, and in pixels where they have none.

TorchIO's RandomSwap is not here: it exchanges patches of images and not of their masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field
from torch import Tensor

from privacy.settings_error import Problem, out_of_range, refuse, unmet

if TYPE_CHECKING:
    import torchio

FORBID: dict[str, Any] = {"extra": "forbid"}
Span: TypeAlias = float | tuple[float, float]
Counts: TypeAlias = int | tuple[int, int]
Axis: TypeAlias = Literal[0, 1, 2]
Interpolation: TypeAlias = Literal["nearest", "linear", "bspline"]
Spacing: TypeAlias = tuple[float, float, float]
"""mm from pixel to pixel, from row to row, and from slice to slice."""
PIXELS: Spacing = (1.0, 1.0, 1.0)
SPLINE = 3  # order of TorchIO's splines: n control points along an axis divide an image into n - 3 parts


@dataclass(frozen=True, kw_only=True)
class BiasField:
    """Brightness that varies smoothly: times e to a random polynomial of the place, of this order."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["bias_field"] = "bias_field"
    coefficients: Span = 0.5
    order: int = 3
    p: float = 1.0

    def __post_init__(self) -> None:
        refuse(_wrong_spans(self, coefficients=(-1, 1)) + out_of_range(self, order=(0, 5), p=(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Gamma:
    """Contrast: values to the power of e^beta, with their sign. log_gamma: beta."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["gamma"] = "gamma"
    log_gamma: Span = (-0.3, 0.3)
    p: float = 1.0

    def __post_init__(self) -> None:
        refuse(_wrong_spans(self, log_gamma=(-2, 2)) + out_of_range(self, p=(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Gaussian noise, in the unit of the images."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["noise"] = "noise"
    mean: Span = 0.0
    std: Span = (0.0, 0.25)
    p: float = 1.0

    def __post_init__(self) -> None:
        refuse(_wrong_spans(self, mean=(-1000, 1000), std=(0, 1000)) + out_of_range(self, p=(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Blur:
    """A Gaussian filter. std: of the filter along each axis."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["blur"] = "blur"
    std: Span = (0.0, 2.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        refuse(_wrong_spans(self, std=(0, 100)) + out_of_range(self, p=(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Motion:
    """A patient who moves so often while lines of k-space are read (Shaw et al., MIDL 2019)."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["motion"] = "motion"
    degrees: Span = 10.0
    translation: Span = 10.0
    num_transforms: int = 2
    image_interpolation: Interpolation = "linear"
    p: float = 1.0

    def __post_init__(self) -> None:
        refuse(
            _wrong_spans(self, degrees=(-180, 180), translation=(-1000, 1000))
            + out_of_range(self, num_transforms=(1, 10), p=(0, 1))
        )


@dataclass(frozen=True, kw_only=True)
class Ghosting:
    """Ghosts along one of the axes. restore: the share of the middle of k-space that stays; null = its middle line."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["ghosting"] = "ghosting"
    num_ghosts: Counts = (4, 10)
    axes: tuple[Axis, ...] = (0, 1, 2)
    intensity: Span = (0.5, 1.0)
    restore: Span | None = None
    p: float = 1.0

    def __post_init__(self) -> None:
        spans = _wrong_spans(self, num_ghosts=(0, 100), intensity=(0, 10), restore=(0, 1))
        refuse(spans + _wrong_axes(self, self.axes) + out_of_range(self, p=(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Spike:
    """Stripes, by points of k-space that are too bright. intensity: in maxima of k-space."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["spike"] = "spike"
    num_spikes: Counts = (1, 1)
    intensity: Span = (1.0, 3.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        refuse(_wrong_spans(self, num_spikes=(0, 100), intensity=(-10, 10)) + out_of_range(self, p=(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Anisotropy:
    """An image that was read with fewer pixels, or slices, along one of the axes. Masks stay as they are."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["anisotropy"] = "anisotropy"
    axes: tuple[Axis, ...] = (0, 1, 2)
    downsampling: Span = (1.5, 5.0)
    image_interpolation: Interpolation = "linear"
    p: float = 1.0

    def __post_init__(self) -> None:
        spans = _wrong_spans(self, downsampling=(1, 10))
        refuse(spans + _wrong_axes(self, self.axes) + out_of_range(self, p=(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Affine:
    """Scales, turns about the middle, and shifts. degrees: about all axes, or a range for each of the three, as
    [0, 0, 0, 0, -180, 180] turns in the plane alone. default_pad_value: of what comes from outside; masks get class 0.
    """

    __pydantic_config__: ClassVar = FORBID

    name: Literal["affine"] = "affine"
    scales: Span = 0.1
    degrees: Span | tuple[float, float, float, float, float, float] = 10.0
    translation: Span = 0.0
    isotropic: bool = False
    default_pad_value: Literal["minimum", "mean", "otsu"] | float = "minimum"
    image_interpolation: Interpolation = "linear"
    p: float = 1.0

    def __post_init__(self) -> None:
        scales = self.scales if isinstance(self.scales, tuple) else (1 - self.scales, 1 + self.scales)
        allowed = "a number in [0, 0.9], or two in [0.1, 10], the lower first"
        refuse(
            unmet(self, scales=(0.1 - 1e-9 <= scales[0] <= scales[1] <= 10, allowed))
            + _wrong_spans(self, degrees=(-180, 180), translation=(-1000, 1000))
            + out_of_range(self, p=(0, 1))
        )


@dataclass(frozen=True, kw_only=True)
class ElasticDeformation:
    """A smooth random displacement, by control points that move by up to `max_displacement` along each axis. The
    outermost `locked_borders` rows of points stay.
    """

    __pydantic_config__: ClassVar = FORBID

    name: Literal["elastic_deformation"] = "elastic_deformation"
    num_control_points: int | tuple[int, int, int] = 7
    max_displacement: float | tuple[float, float, float] = 7.5
    locked_borders: Literal[0, 1, 2] = 2
    image_interpolation: Interpolation = "linear"
    p: float = 1.0

    def __post_init__(self) -> None:
        least = 5 if self.locked_borders == 2 else 4
        refuse(
            unmet(
                self,
                num_control_points=(
                    all(least <= number <= 100 for number in self.points),
                    f"in [{least}, 100] with locked_borders: {self.locked_borders}",
                ),
                max_displacement=(all(0 <= reach <= 1000 for reach in self.reaches), "in [0, 1000]"),
            )
            + out_of_range(self, p=(0, 1))
        )

    @property
    def points(self) -> tuple[int, int, int]:
        """Control points along each axis."""
        number = self.num_control_points
        return number if isinstance(number, tuple) else (number, number, number)

    @property
    def reaches(self) -> tuple[float, float, float]:
        """The largest displacement along each axis."""
        reach = self.max_displacement
        return reach if isinstance(reach, tuple) else (reach, reach, reach)


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Mirrors along each of the axes with a probability of its own."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["flip"] = "flip"
    axes: tuple[Axis, ...] = (0,)
    flip_probability: float = 0.5
    p: float = 1.0

    def __post_init__(self) -> None:
        refuse(_wrong_axes(self, self.axes) + out_of_range(self, flip_probability=(0, 1), p=(0, 1)))


View: TypeAlias = (
    BiasField | Gamma | Noise | Blur | Motion | Ghosting | Spike | Anisotropy | Affine | ElasticDeformation | Flip
)
AnyView: TypeAlias = Annotated[View, Field(discriminator="name")]


def find_view_problems(views: Sequence[View], inputs: tuple[int, ...], spacing: Spacing | None) -> list[Problem]:
    """Why examples of this shape cannot have these views; places are in the list. spacing: None = not known."""
    if not views:
        return []
    if len(inputs) not in (3, 4):
        text = (
            f"turns and blurs images (C, [D,] H, W), and examples are {list(inputs)}, as tables, cached features and "
        )
        return [Problem((), f"{text}the vectors of prompts are; say []")]
    sides = (1, *inputs[1:])[-3:][::-1]  # W, H, D
    problems = []
    for place, view in enumerate(views):
        if len(inputs) == 3 and isinstance(view, Ghosting | Anisotropy | Flip) and set(view.axes) == {2}:
            text = "[2] goes through slices, and an example is one slice; say 0 for left to right, 1 for up and down"
            problems.append(Problem((place, "axes"), text))
        if isinstance(view, ElasticDeformation) and spacing is not None:
            bounds = [
                side * length / (number - SPLINE) / 2
                for side, length, number in zip(sides, spacing, view.points, strict=True)
            ][: len(inputs) - 1]
            if any(reach > bound for reach, bound in zip(view.reaches, bounds, strict=False)):
                text = f"must be at most {[float(f'{bound:.4g}') for bound in bounds]} along the axes with "
                text += f"{list(view.points)} control points, or the image folds; found {list(view.reaches)}"
                problems.append(Problem((place, "max_displacement"), text))
    return problems


def build_torchio_function(views: Sequence[View], *, flat: bool, spacing: Spacing = PIXELS) -> Callable[..., Any]:
    """A function of one example x (C, [D,] H, W), and of its mask ([D,] H, W) if it has one, for
    `federation.transforms.build_views`: all views, one after the other, drawn from torch's global generator.

    flat: examples are (C, H, W).
    """
    import torchio  # takes seconds

    transforms = [_build_transform(view, flat=flat) for view in views]
    affine = np.diag([*spacing, 1.0])

    def apply_views(x: Tensor, mask: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        images = {"x": torchio.ScalarImage(tensor=_turn_axes(x, flat=flat), affine=affine)}
        if mask is not None:
            images["mask"] = torchio.LabelMap(tensor=_turn_axes(mask[None].float(), flat=flat), affine=affine)
        view = torchio.Subject(images)
        for transform in transforms:
            view = transform(view)
        image = _turn_back(view["x"].data, flat=flat)
        return image if mask is None else (image, _turn_back(view["mask"].data, flat=flat)[0])

    return apply_views


def _build_transform(view: View, *, flat: bool) -> torchio.Transform:
    """TorchIO's transform of these settings; of 2-D images nothing leaves the plane."""
    import torchio  # takes seconds

    arguments = {field.name: getattr(view, field.name) for field in fields(view) if field.name != "name"}
    if flat and "axes" in arguments:
        arguments["axes"] = tuple(axis for axis in arguments["axes"] if axis != 2)
    if flat and isinstance(view, ElasticDeformation):
        arguments["max_displacement"] = (*view.reaches[:2], 0.0)
    if flat and isinstance(view, Affine):
        shift = view.translation if isinstance(view.translation, tuple) else (-view.translation, view.translation)
        arguments["translation"] = (*shift, *shift, 0.0, 0.0)
    transform: torchio.Transform = getattr(torchio, f"Random{type(view).__name__}")(**arguments)
    return transform


def _turn_axes(x: Tensor, *, flat: bool) -> Tensor:
    """(C, [D,] H, W) as TorchIO's (C, W, H, D)."""
    return (x[:, None] if flat else x).permute(0, 3, 2, 1).contiguous()


def _turn_back(x: Tensor, *, flat: bool) -> Tensor:
    """TorchIO's (C, W, H, D) as (C, [D,] H, W)."""
    turned = x.permute(0, 3, 2, 1)
    return turned[:, 0] if flat else turned


def _wrong_spans(settings: object, **bounds: tuple[float, float]) -> list[Problem]:
    """The fields that are neither a number from 0 on nor two, the lower first, nor two for each axis, within their
    bounds. None is allowed.
    """

    def holds(value: Any, low: float, high: float) -> bool:
        ends = value if isinstance(value, tuple) else (max(low, 0), value)
        return all(low <= first <= last <= high for first, last in zip(ends[::2], ends[1::2], strict=True))

    return unmet(
        settings,
        **{
            name: (
                getattr(settings, name) is None or holds(getattr(settings, name), low, high),
                f"a number in [{max(low, 0):g}, {high:g}], or two in [{low:g}, {high:g}], the lower first",
            )
            for name, (low, high) in bounds.items()
        },
    )


def _wrong_axes(settings: object, axes: Sequence[int]) -> list[Problem]:
    """A problem if there are no axes, or one of them twice."""
    return unmet(settings, axes=(0 < len(axes) == len(set(axes)), "one to three of 0, 1, 2, each once"))
