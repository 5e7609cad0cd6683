"""Read examples that are tensors already, one by one, as every other reader does: what is wrong with one is told of it.

A patient's mistake must not stop the others' training: that alone would tell something of the patient. So whatever
concerns one example rejects that example, and only the form of the file refuses the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.data.images import Target, Tensors
from pipelines.data.intake import Examples, Intake, ReadStudy, WaitingStudy, no_masks
from pipelines.data.label_classes import PLAIN
from pipelines.data.pseudonym import normalized
from pipelines.data.split import SPLITS
from pipelines.data.study import Item, Unusable
from pipelines.data.tensor_source import TensorSource
from pipelines.data.tensors.file import TensorFile, open_tensor_file

UNIT = "as given"


def open_tensors(source: TensorSource, images: Tensors, target: Target | None, classes: Sequence[str] = ()) -> Intake:
    """Each example becomes a waiting study. classes: of the task, see `read_cohort`.

    Raises:
        ValueError: the file cannot be read or has another form; all problems at once.
    """
    try:
        file = open_tensor_file(Path(source.file))
    except ValueError as error:
        raise ValueError(f"source.file: {error}") from error
    if problems := _form_problems(file, images, target, classes):
        raise ValueError(f"source.file: {source.file!r}: {'; '.join(problems)}")
    names = [normalized(name) for name in file.patient]
    divided = _divided(names, file.split)
    count = len(classes) + 1 if target else len(classes or PLAIN)
    waiting = tuple(
        WaitingStudy(
            patient, f"example {number}", partial(_read_example, file, number, patient, target, count, divided)
        )
        for number, patient in enumerate(names)
    )
    items = tuple(Item(one.study, "part", (one.study,), one.patient) for one in waiting)
    splits = {name: found for name, found in (divided or {}).items() if found in SPLITS}
    masks = tuple(classes) if target else ()
    return Intake(waiting, (), items, 0, UNIT, masks, "examples", splits if file.split else None)


def _form_problems(file: TensorFile, images: Tensors, target: Target | None, classes: Sequence[str]) -> list[str]:
    """Why no example of this file can be one of the run's."""
    problems, shapes = [], file.shapes
    count, inputs = shapes["x"][0], shapes["x"][1:]
    if inputs != images.inputs:
        problems.append(f"x holds examples of shape {list(inputs)}, and images.inputs is {list(images.inputs)}")
    if target is None and shapes.get("y") != (count,):
        problems.append(f"y must be (n,), a class for each example, found {_shown(shapes, 'y')}")
    if target is not None and shapes.get("mask") != (count, *inputs[1:]):
        wanted = ["n", *inputs[1:]]
        problems.append(f"mask must be {wanted}, a class for each pixel, found {_shown(shapes, 'mask')}")
    known = tuple(classes) or PLAIN
    if file.classes and file.classes != known:
        text = f"classes are {', '.join(file.classes)}, and the task's are {', '.join(known)}, in this order"
        problems.append(f"{text}; give one of the two other numbers")
    return problems


def _shown(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "none"


def _divided(names: Sequence[str], split: Sequence[str]) -> dict[str, str] | None:
    """Patient -> split, or a word about what is wrong with it; None where the file gives no splits."""
    if not split:
        return None
    found: dict[str, set[str]] = {}
    for name, own in zip(names, split, strict=True):
        found.setdefault(name, set()).add(own)
    return {name: own.pop() if len(own) == 1 else " and ".join(sorted(own)) for name, own in found.items()}


def _read_example(
    file: TensorFile, number: int, patient: str, target: Target | None, classes: int, divided: Mapping[str, str] | None
) -> ReadStudy:
    if not patient:
        raise Unusable("no_patient", "the patient's name is empty. Every example must name its patient.")
    if divided is not None and divided[patient] not in SPLITS:
        text = f"the patient is in {divided[patient]!r}; one of {', '.join(SPLITS)} is needed, the same for all of a"
        raise Unusable("bad_split", f"{text} patient's examples.")
    x = file.part["x"](number)
    if not np.isfinite(x).all():
        places = int((~np.isfinite(x)).sum())
        raise Unusable("not_finite", f"{places} of {x.size} numbers are not finite. Replace them before.")
    if target is None:
        label, mask = int(file.part["y"](number)[0]), no_masks(1)
        highest = label
    else:
        mask = file.part["mask"](number).astype(np.uint8)
        label, highest = int(mask.any()), int(mask.max(initial=0))
    if not 0 <= highest < classes:
        raise Unusable("bad_label", f"the class {highest} does not exist; it must be in 0..{classes - 1}.")
    examples = Examples(x.astype(np.float32), no_masks(1), no_masks(1), np.zeros(1, np.float32), mask)
    return ReadStudy(patient, f"example {number}", examples, [label], "unknown")
