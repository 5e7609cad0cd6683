"""Label maps: what their values stand for.

Hospitals encode their maps differently (0 and 255; 0, 1 and 2), so each lists in its settings the values of each class.
Other values are refused: if they counted as background, models would learn them as such. Values of the name `ignore`
are no class: nobody says what is there, and nothing is learnt or scored there (nnU-Net's ignore label).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from federation.task import IGNORED
from pipelines.data.sources import BACKGROUND, IGNORE, PictureMasks, VolumeMasks
from pipelines.data.study import Unusable

MOST_MASK_CLASSES = 7  # classes without the background


def order_classes(masks: PictureMasks | VolumeMasks, classes: Sequence[str]) -> tuple[str, ...]:
    """The classes to learn, 1 = the first; () = all classes of the settings.

    Raises:
        ValueError: the settings name other classes.
    """
    class_names = tuple(classes) or masks.classes
    if set(class_names) != set(masks.classes):
        raise ValueError(
            f"source.masks.values: they name {', '.join(masks.classes)}, and {', '.join(class_names)} are to be "
            "learnt; say the values of each of these, and under background those of others"
        )
    return class_names


def number_values(masks: PictureMasks | VolumeMasks, class_names: Sequence[str]) -> dict[int, int]:
    """Value -> class, 0 = background, 1 = the first of `class_names`, which are those of the settings; `IGNORED` of
    what is not to count. Of overlapping segments a value is a set of them, as of `join_segments`.
    """
    numbers = {BACKGROUND: 0, IGNORE: IGNORED, **{name: number for number, name in enumerate(class_names, start=1)}}
    if isinstance(masks, VolumeMasks) and masks.segments:
        sets = {name: join_segments(several) for name, several in masks.segments.items()}
        return {0: 0, **{value: numbers[name] for name, value in sets.items()}}
    every = {BACKGROUND: (0,), **masks.values}
    return {value: numbers[name] for name, values in every.items() for value in values}


def join_segments(numbers: Iterable[int]) -> int:
    """A set of segments as one number: bit n - 1 stands for segment n."""
    return sum(1 << number - 1 for number in set(numbers))


def split_segments(value: int) -> list[int]:
    """The segments of a number of `join_segments`, ascending."""
    return [place + 1 for place in range(value.bit_length()) if value >> place & 1]


def has_class(class_map: NDArray[np.generic]) -> bool:
    """Whether a map shows a class, beside background and what is ignored."""
    return bool(((class_map != 0) & (class_map != IGNORED)).any())


def convert_to_classes(
    values: NDArray[np.generic], codes: Mapping[int, int], name: str, *, hint: str = ""
) -> NDArray[np.uint8]:
    """The class of each value, in the same shape. name: of the file. hint: a further reason for strange values.

    Raises:
        Unusable: `mask_value`: a value without a class, also one that is no whole number.
    """
    present = np.unique(values)
    if strange := sorted(set(present.tolist()) - set(codes)):
        shown = [int(value) if value == value // 1 else value for value in strange[:5]]
        raise Unusable(
            "mask_value",
            f"the mask {name} has the values {shown}, for which source.masks.values names no class. Say "
            f"what they are, under background if they are none{hint}.",
        )
    class_map = np.zeros(values.shape, np.uint8)
    for value in present.tolist():
        class_map[values == value] = codes[value]
    return class_map
