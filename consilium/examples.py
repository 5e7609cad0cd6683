"""One hospital's examples as arrays: checked when they are made, written as a file for the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilium.transform_trial import transform_problems
from federation.findings import MOST_FINDINGS
from pipelines.data.images import MOST_AXES
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.split import SPLITS
from pipelines.data.tensors.file import tensor_bytes
from pipelines.loader.document import ConfigError
from pipelines.settings.task import MOST_MASK_CLASSES
from privacy.settings_error import Problem

SHOWN = 4
AGAIN = 32  # items that are read twice: what flips half of them is missed once in 4e9
LABELS = ("y", "mask", "findings")
LABELS_OF_FINDINGS = 2  # axes of all examples' findings together
UNKNOWN = -1
"""A finding of which nothing is known, in the file."""
REAL, WHOLE_NUMBERS = "fiub", "iub"  # numpy's letters of kinds of numbers


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples that are ready for a network, with their labels or masks and the patient of each.

    Args:
        x: (n, *inputs), finite numbers, kept as float32; 1 to 4 sides, as (features,), (C, H, W) or (C, D, H, W).
        y: (n,) whole numbers, the class of each example, 0 = the first; None where masks are learnt.
        patient: n names (texts or whole numbers), or "each" = every example is a patient. Patients are split, and
            protected by ε, with all their examples; a patient under two names counts as two.
        mask: (n, *spatial) whole numbers, the class of each pixel, 0 = background.
        findings: (n, K) of K findings, each 1 = there, 0 = not, NaN or None = nobody knows; in place of y and mask.
        split: of each example "train", "validation" or "test", the same for all of a patient; or patient -> split.
            None = the run divides the patients.
        transform: gives a random view of an example each time that training draws it; validation and test patients
            are seen as they are. See `federation.transforms.register_transform` for how it is called and what it may
            draw from. It is tried here, on invented examples.

    Raises:
        ConfigError: all that is wrong.
    """

    x: Any
    y: Any = None
    patient: Sequence[object] | Literal["each"] = ()
    mask: Any = None
    findings: Any = None
    split: Sequence[str] | Mapping[object, str] | None = None
    transform: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        x = _check_numbers(self.x, "x", REAL, problems)
        y = None if self.y is None else _check_numbers(self.y, "y", WHOLE_NUMBERS, problems)
        mask = None if self.mask is None else _check_numbers(self.mask, "mask", WHOLE_NUMBERS, problems)
        findings = None if self.findings is None else _check_findings(self.findings, problems)
        if len(labels := [name for name in LABELS if getattr(self, name) is not None]) != 1:
            given_text = " and ".join(labels) or "neither"
            text = "give either y, labels, or mask, classes of pixels, or findings; found"
            problems.append(Problem(("y",), f"{text} {given_text}"))
        names = _check_names(self.patient, None if x is None else len(x), problems)
        if x is not None:
            problems += _shape_problems(x, y, mask)
            problems += _value_problems(x, y, mask)
            problems += [] if findings is None else _find_finding_problems(len(x), findings)
            problems += _length_problems(len(x), names)
        split = () if self.split is None else _check_splits(self.split, names, problems)
        if self.transform is not None and x is not None and not problems:
            problems += transform_problems(self.transform, _to_single(x), mask)
        if problems or x is None:
            raise ConfigError(problems)
        for name, value in (("x", _to_single(x)), ("y", y if y is None else y.astype(np.int64)), ("patient", names)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "mask", None if mask is None else mask.astype(np.uint8))
        object.__setattr__(self, "findings", None if findings is None else _to_states(findings))
        object.__setattr__(self, "split", split)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(int(side) for side in self.x.shape[1:])

    @property
    def highest(self) -> int:
        """The highest class that occurs; of findings 1 where any example has one."""
        return int(self._labels.max())

    @property
    def _labels(self) -> NDArray[Any]:
        """Whichever labels there are."""
        return np.asarray(next(part for part in (self.y, self.mask, self.findings) if part is not None))

    @property
    def classes(self) -> frozenset[int]:
        """The classes that occur."""
        return frozenset(int(number) for number in np.unique(self._labels))

    @staticmethod
    def of(items: Any, patient: Sequence[object] | Literal["each"] | None = None, **more: Any) -> Examples:
        """All items of a `torch.utils.data.Dataset`, or of any sequence, read once in their order.

        items: (x, y, patient) each, or (x, y) with `patient` given separately; y is a class, a mask, or K
        findings. more: `split` and `transform`, as of
        `Examples`. Up to AGAIN items are read twice: a Dataset that draws random numbers would be frozen as drawn, test
        patients too, so it is refused; the run draws views of training patients only, by `transform` or
        `Work(augment=...)`.

        Raises:
            ConfigError: all that is wrong.
        """
        try:
            read = [items[number] for number in range(len(items))]
            _refuse_dictionaries(items, read)
            parts = [tuple(item) for item in read]
        except (TypeError, KeyError) as error:
            loads = hasattr(items, "batch_size") and hasattr(items, "dataset")  # torch's and MONAI's DataLoader
            remedy = "give its dataset, the run makes the batches" if loads else "give a Dataset with a length"
            text = f"{type(items).__name__} is no sequence of (x, y, patient): {error}; {remedy}"
            raise ConfigError([Problem((), text)]) from error
        expected_parts = 3 if patient is None else 2
        if not parts or (wrong := sorted({len(part) for part in parts} - {expected_parts})):
            lengths_text = f"items of {', '.join(map(str, wrong))}" if parts else "no item"
            also = "" if patient is not None else ", or (x, y) and patient=[...] or patient='each' apart"
            form = "(x, y, patient)" if expected_parts == 3 else "(x, y)"
            text = f"{type(items).__name__} has {lengths_text}; each must be {form}"
            raise ConfigError([Problem((), text + also)])
        _refuse_random(items, parts)
        whose = [_to_scalar(part[2]) for part in parts] if patient is None else patient
        x, y = _stack_values([part[0] for part in parts], "x"), _stack_values([part[1] for part in parts], "y")
        if y.ndim == LABELS_OF_FINDINGS:
            return Examples(x, None, whose, findings=y, **more)
        return Examples(x, None, whose, mask=y, **more) if y.ndim > 1 else Examples(x, y, whose, **more)

    def data(self, classes: Sequence[str]) -> bytes:
        """The bytes of their file (`pipelines.data.tensor_source`). classes: of the run's task; empty = not known."""
        parts = {"x": self.x} | {name: part for name in LABELS if (part := getattr(self, name)) is not None}
        return tensor_bytes(parts, [str(name) for name in self.patient], tuple(map(str, self.split or ())), classes)


def _refuse_dictionaries(items: Any, read: Sequence[object]) -> None:
    """Raises: ConfigError: the first item is a mapping."""
    if read and isinstance(read[0], Mapping):
        keys = ", ".join(map(repr, list(read[0])[:SHOWN]))
        text = f"{type(items).__name__} has dictionaries with {keys}; each item must be (x, y) or (x, y, patient)"
        raise ConfigError([Problem((), f"{text}: give [(item['image'], item['label']) for item in dataset]")])


def _refuse_random(items: Any, parts: Sequence[tuple[Any, ...]]) -> None:
    """Raises: ConfigError: an item differs when it is read a second time."""
    for number in _spread_numbers(len(parts)):
        for before, after in zip(parts[number][:2], items[number], strict=False):
            first, second = _to_array(before), _to_array(after)
            if first.shape != second.shape or first.tobytes() != second.tobytes():
                text = (
                    f"{type(items).__name__} gives another item {number} when it is read again: it draws random numbers"
                )
                todo = "which would be frozen, in test patients too; take them out, and give them as transform=..., or "
                todo += "use Work(augment=...)"
                raise ConfigError([Problem((), f"{text}, {todo}")])


def _spread_numbers(count: int) -> list[int]:
    """Up to AGAIN numbers below count, from the first to the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, AGAIN))})


def _to_single(x: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers as contiguous float32."""
    return np.ascontiguousarray(x, np.float32)


def _to_scalar(value: Any) -> object:
    """The Python value of an array or tensor of one element; anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def _to_array(value: Any) -> NDArray[Any]:
    """A value as an array; a tensor is copied to the CPU first if it lies elsewhere."""
    if hasattr(value, "detach"):  # a tensor, perhaps on another device
        value = value.detach().cpu()
    return np.asarray(value)


def _stack_values(values: Sequence[Any], name: str) -> NDArray[Any]:
    """The values as one array. Raises: ConfigError: their shapes differ."""
    arrays = [_to_array(value) for value in values]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        shown = ", ".join(str(list(shape)) for shape in shapes[:SHOWN])
        raise ConfigError([Problem((name,), f"items have different shapes, {shown}; bring them to one")])
    return np.stack(arrays)


def _check_numbers(value: Any, name: str, kinds: str, problems: list[Problem]) -> NDArray[Any] | None:
    """The value as an array of one of these kinds; None, with a new problem, if it is none."""
    try:
        array = _to_array(value)
    except (TypeError, ValueError) as error:
        problems.append(Problem((name,), f"no array of numbers ({error}); give one shape for all examples"))
        return None
    if array.dtype.kind not in kinds:
        problems.append(Problem((name,), _describe_type_problem(array, kinds)))
        return None
    return array


def _check_findings(value: Any, problems: list[Problem]) -> NDArray[Any] | None:
    """The findings as an array of numbers, NaN for None; None, with a new problem, if they are none."""
    array = _to_array(value)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            problems.append(Problem(("findings",), "no array of 1, 0 and NaN; give one row of them for each example"))
            return None
    return _check_numbers(array, "findings", REAL, problems)


def _find_finding_problems(count: int, findings: NDArray[Any]) -> list[Problem]:
    """What is wrong with the shape and the values of findings. count: of examples."""
    if findings.ndim != LABELS_OF_FINDINGS or len(findings) != count or not 2 <= findings.shape[1] <= MOST_FINDINGS:
        text = f"must be ({count}, K), K = 2 to {MOST_FINDINGS} findings of each example, found {list(findings.shape)}"
        return [Problem(("findings",), text)]
    strange = np.unique(findings[~(np.isin(findings, (0, 1)) | np.isnan(findings))])
    if not len(strange):
        return []
    shown = ", ".join(f"{value:g}" for value in strange[:SHOWN].astype(float))
    text = f"must be 1, 0, or NaN where nobody knows, found {shown}; say what it stands for, as np.where(y < 0, nan, y)"
    return [Problem(("findings",), text)]


def _to_states(findings: NDArray[Any]) -> NDArray[np.int8]:
    """Findings as whole numbers: 1, 0, or UNKNOWN for NaN."""
    return np.where(np.isnan(findings), UNKNOWN, findings).astype(np.int8)


def _describe_type_problem(array: NDArray[Any], kinds: str) -> str:
    """What is wrong with an array of another type, and what to do."""
    if kinds != WHOLE_NUMBERS or array.dtype.kind != "f":
        what = "whole numbers" if kinds == WHOLE_NUMBERS else "numbers"
        remedy = "say which number each stands for" if array.dtype.kind in "USO" else f"give real {what}"
        if kinds == WHOLE_NUMBERS and array.dtype.kind in "US":
            remedy = "classes may have names: names, y = np.unique(y, return_inverse=True), and classes=[*names]"
        return f"must hold {what}, found {array.dtype}; {remedy}"
    between = array[~(np.isfinite(array) & (array == np.round(array)))]
    if not len(between):
        return f"must hold classes as whole numbers, found {array.dtype}; say y.astype(int)"
    return (
        f"must hold classes 0, 1, ..., found measurements such as {between.flat[0]:g} ({array.dtype}); examples "
        "given here have classes, and a measurement is learnt from a table of labels (task: {kind: regression}): make "
        "classes of it, as (y > 20).astype(int)"
    )


def _check_names(patient: object, count: int | None, problems: list[Problem]) -> tuple[str, ...]:
    """The patients' normalized names; what is wrong is added to `problems`."""
    if isinstance(patient, str):
        if patient != "each":
            problems.append(Problem(("patient",), f'must be a list of names, or "each", found {patient[:20]!r}'))
        return tuple(str(number + 1) for number in range(count or 0)) if patient == "each" else ()
    listed = _to_array(patient).tolist() if hasattr(patient, "shape") else patient
    if not isinstance(listed, Iterable):
        problems.append(Problem(("patient",), f"must be a list of names, found {type(patient).__name__}"))
        return ()
    values = list(listed)
    if strange := sorted(
        {
            type(value).__name__
            for value in values
            if isinstance(value, bool) or not isinstance(value, str | int | np.integer)
        }
    ):
        problems.append(Problem(("patient",), f"names must be texts or whole numbers, found {', '.join(strange)}"))
        return ()
    names = tuple(normalize_identifier(str(value)) for value in values)
    if empty := [row for row, name in enumerate(names) if not name]:
        problems.append(Problem(("patient",), f"empty in {_describe_rows(empty)}; name the patient of every example"))
    return names


def _length_problems(count: int, names: Sequence[str]) -> list[Problem]:
    """The problem if there are more or fewer names than examples."""
    if len(names) == count:
        return []
    text = f"{len(names)} names for {count} examples; give one for each"
    return [Problem(("patient",), text + ("" if names else ', or patient="each" if every example is a patient'))]


def _shape_problems(x: NDArray[Any], y: NDArray[Any] | None, mask: NDArray[Any] | None) -> list[Problem]:
    """What is wrong with the shapes of x, y and the mask."""
    problems = []
    shape = list(x.shape)
    if not 2 <= x.ndim <= MOST_AXES + 1 or 0 in shape:
        text = f"must be (n, *inputs) with n >= 1 and 1 to {MOST_AXES} sides of an example, found {shape}"
        problems.append(Problem(("x",), text))
        return problems
    if y is not None and y.shape != (len(x),):
        problems.append(Problem(("y",), f"must be ({len(x)},), a class for each example, found {list(y.shape)}"))
    if mask is not None and (mask.shape != (len(x), *x.shape[2:]) or x.ndim < 4):
        mask_shape = [len(x), *shape[2:]] if x.ndim > 3 else "of images (C, H, W) or (C, D, H, W)"
        problems.append(Problem(("mask",), f"must be {mask_shape}, a class for each pixel, found {list(mask.shape)}"))
    return problems


def _value_problems(x: NDArray[Any], y: NDArray[Any] | None, mask: NDArray[Any] | None) -> list[Problem]:
    """Numbers that are not finite, and classes that are out of range."""
    problems = []
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(x.astype(np.float32)).reshape(len(x), -1).all(axis=1) if x.size else np.zeros(0, bool)
    if wrong.any():
        text = f"not finite (NaN, infinite, or beyond 3e38) in {_describe_rows(np.flatnonzero(wrong).tolist())}"
        problems.append(Problem(("x",), f"{text}; replace or leave out"))
    for name, values, most in (("y", y, 255), ("mask", mask, MOST_MASK_CLASSES)):
        if values is not None and values.size and not 0 <= int(values.min()) <= int(values.max()) <= most:
            range_text = f"{int(values.min())} to {int(values.max())}"
            problems.append(Problem((name,), f"classes must be in 0..{most}, 0 = the first, found {range_text}"))
    return problems


def _check_splits(
    split: Sequence[str] | Mapping[object, str], names: Sequence[str], problems: list[Problem]
) -> tuple[str, ...]:
    """The split of each example; what is wrong is added to `problems`."""
    if isinstance(split, Mapping):
        known = {normalize_identifier(str(name)): str(value) for name, value in split.items()}
        if missing := sorted(set(names) - set(known)):
            text = f"no split for {', '.join(map(repr, missing[:SHOWN]))}; name one of {', '.join(SPLITS)} for each"
            problems.append(Problem(("split",), f"{text} ({len(missing)} missing)"))
            return ()
        splits = tuple(known[name] for name in names)
    else:
        splits = tuple(str(_to_scalar(value)) for value in split)
    if len(splits) != len(names):
        problems.append(Problem(("split",), f"{len(splits)} splits for {len(names)} examples; give one for each"))
        return ()
    if strange := sorted(set(splits) - {*SPLITS}):
        text = f"must be {', '.join(SPLITS)}, found {', '.join(map(repr, strange[:SHOWN]))}"
        problems.append(Problem(("split",), text))
    twice = [
        name for name, number in Counter(name for name, _ in set(zip(names, splits, strict=True))).items() if number > 1
    ]
    if twice:
        text = f"{len(twice)} patients are in two splits ({', '.join(map(repr, sorted(twice)[:SHOWN]))}); give one each"
        problems.append(Problem(("split",), text))
    if splits and "train" not in splits:
        problems.append(Problem(("split",), "nobody is in train; name some"))
    return splits


def _describe_rows(rows: Sequence[int]) -> str:
    """The first numbers of rows as text, and how many more there are."""
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"row {', '.join(map(str, rows[:SHOWN]))}{more}"
