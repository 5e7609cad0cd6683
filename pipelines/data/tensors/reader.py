"""Read examples that are tensors already, one by one, as every other reader does.

An error in one patient's example must not stop the training: that alone would reveal something about the patient. So an
error in one example rejects that example, and only a wrong form of the file refuses all examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from federation.findings import UNKNOWN, encode_findings
from pipelines.data.images import Target, Tensors
from pipelines.data.intake import Examples, Intake, ReadStudy, WaitingStudy, empty_masks
from pipelines.data.label_classes import PLAIN
from pipelines.data.label_findings import FindingNames
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.split import SPLITS
from pipelines.data.study import Item, Unusable
from pipelines.data.tensor_source import TensorSource
from pipelines.data.tensors.file import TensorFile, open_tensor_file

UNIT = "as given"


def open_tensors(
    source: TensorSource,
    images: Tensors,
    target: Target | None,
    classes: Sequence[str] = (),
    findings: FindingNames | None = None,
) -> Intake:
    """Each example becomes a waiting study. classes: of the task, see `read_cohort`. findings: that the task learns.

    Raises:
        ValueError: the file cannot be read or has another form; all problems at once.
    """
    try:
        file = open_tensor_file(Path(source.file))
    except ValueError as error:
        raise ValueError(f"source.file: {error}") from error
    if problems := _form_problems(file, images, target, classes, findings):
        raise ValueError(f"source.file: {source.file!r}: {'; '.join(problems)}")
    names = [normalize_identifier(name) for name in file.patient]
    divided = _patient_splits(names, file.split)
    count = len(classes) + 1 if target else len(classes or PLAIN)
    waiting = tuple(
        WaitingStudy(
            patient,
            f"example {number}",
            partial(_read_example, file, number, patient, target, count, divided, findings is not None),
        )
        for number, patient in enumerate(names)
    )
    items = tuple(Item(study.study, "part", (study.study,), study.patient) for study in waiting)
    splits = {name: split for name, split in (divided or {}).items() if split in SPLITS}
    masks = tuple(classes) if target else ()
    return Intake(waiting, (), items, 0, UNIT, masks, "examples", splits if file.split else None)


def _form_problems(
    file: TensorFile, images: Tensors, target: Target | None, classes: Sequence[str], findings: FindingNames | None
) -> list[str]:
    """Problems with the file's form, by which no example fits the run."""
    problems, shapes = [], file.shapes
    count, inputs = shapes["x"][0], shapes["x"][1:]
    if inputs != images.inputs:
        problems.append(f"x holds examples of shape {list(inputs)}, and images.inputs is {list(images.inputs)}")
    if findings is not None and shapes.get("findings") != (count, len(findings.names)):
        needed = f"findings must be [n, {len(findings.names)}], 1, 0 or -1 of each finding"
        problems.append(f"{needed}, found {_format_shape(shapes, 'findings')}")
    if target is None and findings is None and shapes.get("y") != (count,):
        problems.append(f"y must be (n,), a class for each example, found {_format_shape(shapes, 'y')}")
    if target is not None and shapes.get("mask") != (count, *inputs[1:]):
        mask_shape = ["n", *inputs[1:]]
        problems.append(f"mask must be {mask_shape}, a class for each pixel, found {_format_shape(shapes, 'mask')}")
    known = tuple(classes) or PLAIN if findings is None else findings.names
    if file.classes and file.classes != known:
        text = f"classes are {', '.join(file.classes)}, and the task's are {', '.join(known)}, in this order"
        problems.append(f"{text}; give one of the two other numbers")
    return problems


def _format_shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    """A tensor's shape for a message; "none" if the file does not have it."""
    return str(list(shapes[name])) if name in shapes else "none"


def _patient_splits(names: Sequence[str], split: Sequence[str]) -> dict[str, str] | None:
    """Patient -> split, or all splits of a patient that has several; None where the file gives no splits."""
    if not split:
        return None
    name_splits: dict[str, set[str]] = {}
    for name, example_split in zip(names, split, strict=True):
        name_splits.setdefault(name, set()).add(example_split)
    return {
        name: splits.pop() if len(splits) == 1 else " and ".join(sorted(splits)) for name, splits in name_splits.items()
    }


def _read_example(
    file: TensorFile,
    number: int,
    patient: str,
    target: Target | None,
    classes: int,
    divided: Mapping[str, str] | None,
    has_findings: bool,
) -> ReadStudy:
    """One example with its label or mask. Raises: Unusable."""
    if not patient:
        raise Unusable("no_patient", "the patient's name is empty. Every example must name its patient.")
    if divided is not None and divided[patient] not in SPLITS:
        text = f"the patient is in {divided[patient]!r}; one of {', '.join(SPLITS)} is needed, the same for all of a"
        raise Unusable("bad_split", f"{text} patient's examples.")
    x = file.part["x"](number)
    if not np.isfinite(x).all():
        places = int((~np.isfinite(x)).sum())
        raise Unusable("not_finite", f"{places} of {x.size} numbers are not finite. Replace them before.")
    if has_findings:
        label, highest, mask = _read_findings(file, number), 0, empty_masks(1)
    elif target is None:
        label, mask = int(file.part["y"](number)[0]), empty_masks(1)
        highest = label
    else:
        mask = file.part["mask"](number).astype(np.uint8)
        label, highest = int(mask.any()), int(mask.max(initial=0))
    if not 0 <= highest < classes:
        raise Unusable("bad_label", f"the class {highest} does not exist; it must be in 0..{classes - 1}.")
    examples = Examples(x.astype(np.float32), empty_masks(1), empty_masks(1), np.zeros(1, np.float32), mask)
    return ReadStudy(patient, f"example {number}", examples, [label], "unknown")


def _read_findings(file: TensorFile, number: int) -> int:
    """The number of one example's findings (`federation.findings.encode_findings`). Raises: Unusable."""
    states = torch.from_numpy(file.part["findings"](number)[0].astype(np.int64))
    if not bool(((states >= -1) & (states <= 1)).all()):
        raise Unusable("bad_label", "a finding must be 1, 0, or -1 where nobody knows. Correct the file.")
    if bool((states == -1).all()):
        raise Unusable("no_label", "no finding is known. Fill one in, or take the example away.")
    return int(encode_findings(torch.where(states == -1, UNKNOWN, states)))
