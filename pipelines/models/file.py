"""The file of a hospital's finished model, with the settings that turn a study into the network's input.

`pipelines.hospital.model_file` writes it beside the scores when a hospital's own model is evaluated, and it stays
there; `pipelines.predict` reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from federation.calibration import Calibrated, Centring
from federation.descent import Work
from federation.models import AnyModel, NamedModel, OnFeatures
from federation.models.adapted import write_fixed_in
from federation.models.clip import Clip, read_text_transformer
from federation.origins import read_permitted_packages, refuse_other_code
from federation.parameters import loaded
from federation.registry import NotPermitted, permit_packages
from federation.task import Kind, Task
from personalize import AnyAlgorithm, NamedAlgorithm
from pipelines.data.images import IMAGES, AnyImages, Target
from pipelines.data.label_numbers import LabelRange, read_range
from pipelines.data.regions import read_regions
from pipelines.data.sources import SOURCE, Files
from pipelines.data.tables.features import Moments, from_json, standardize_features
from pipelines.data.tables.principal_components import Axes, axes_from_json, project_features
from pipelines.loader.names import is_name
from pipelines.models.answers import predict_probabilities
from pipelines.models.fixed_features import Fixed, compute_features, from_tensors
from pipelines.models.likeness import ENDING, Likeness, Verdict, read_likeness
from pipelines.models.size_limits import find_size_problems
from pipelines.models.translator_file import SCALE, SETTINGS
from privacy.formats import LaterVersion, check_format
from privacy.message import (
    Json,
    Malformed,
    Message,
    as_list,
    from_bytes,
    unseal_parts,
    whole_of,
    wholes_of,
)
from privacy.settings_error import words_of

READY = "ready"
COMPLETE = "whole"
"""Why training ended, in a model's facts, where no budget cut it off."""
FORMAT = 1
KIND: TypeAdapter[Kind] = TypeAdapter(Kind)
PREFIX = "translator:"
"""Prefix of a translator's tensors, in a file that also holds a classifier."""
SCALED = "features:"
FIXED = "fixed:"
"""Prefix of the tensors that scale fixed features, in the file of a model that is built on them."""
LARGEST = "largest"
"""The fact of a segmenting model that names the classes of which only the largest component is kept."""
CENTRING = "calibration:centring"
"""The tensor (2,) float64 of a calibrated classifier: offset and spread of its logits."""


ALGORITHM: TypeAdapter[AnyAlgorithm] = TypeAdapter(NamedAlgorithm)
MODEL: TypeAdapter[AnyModel] = TypeAdapter(NamedModel)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a model comes from; what its file does not say is None. site: empty = not of one hospital. ended: why its
    training ended, after rounds_trained of rounds. start: what its network began with. labels: names of what it learnt,
    of labels; target: of masks. space, translated: of its images, and the translator's settings with their scale.
    """

    label: str
    site: str = ""
    run: str | None = None
    round: int | None = None
    checkpoint: str | None = None
    rounds_trained: int | None = None
    rounds: int | None = None
    ended: str | None = None
    program: str | None = None
    algorithm: dict[str, Any] | None = None
    calibration: Any = None
    privacy: Any = None
    start: Any = None
    labels: tuple[str, ...] = ()
    target: Target | None = None
    space: str | None = None
    translated: dict[str, Any] | None = None

    @property
    def cut_off(self) -> str:
        """As `ended_in`."""
        return ended_in(vars(self))


ORIGIN = TypeAdapter(Origin)


@dataclass(frozen=True)
class Ready:
    """A finished model. source: how the training images were found, without the folder. scale, axes: normalization of
    features, and their principal axes. translate: brings one study's examples (n, C, H, W) into the space in which the
    model was trained. names: of classes 1, 2, ... of a segmentation; of all classes, if labels have more than two; of
    findings. ordered: whether each class is more than the one before it. digest: of the file, 16 letters. window: sides
    of the input window with which it was scored; None = whole images. centring: shift and scale of logits, if any.
    features: the fixed features on which the model is built, computed after translation. number: what is predicted and
    its range, if that is a number. regions: of masks, region -> its classes, where structures may overlap. largest:
    numbers of the structures of which only the largest component is kept, 1 = the first. likeness: statistics by which
    a study unlike the training patients is detected, or in words why there are none.
    """

    module: nn.Module
    task: Task
    images: AnyImages
    source: Files
    gland: bool
    scale: Moments | None
    axes: Axes | None
    origin: Origin
    translate: Callable[[Tensor], Tensor]
    names: tuple[str, ...] = ()
    ordered: bool = False
    digest: str = ""
    window: tuple[int, ...] | None = None
    centring: Centring | None = None
    features: Fixed | None = None
    number: LabelRange | None = None
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: tuple[int, ...] = ()
    likeness: Likeness | str = "this kind of file has no statistics of training patients"

    @property
    def structures(self) -> dict[str, tuple[int, ...]]:
        """Of masks: what is scored and written, by name, with its classes: regions, or else each class."""
        return dict(self.regions) or {name: (number,) for number, name in enumerate(self.names, start=1)}

    @property
    def kept_structures(self) -> tuple[tuple[int, ...], ...]:
        """The classes of each structure of which only the largest component is kept."""
        members = [*self.structures.values()]
        return tuple(members[number - 1] for number in self.largest)

    def seen(self, x: Tensor) -> Tensor:
        """The network's input from a study's examples x (n, *inputs)."""
        if self.scale is not None:
            x = standardize_features(x, self.scale)
        if self.axes is not None:
            x = project_features(x, self.axes)
        x = self.translate(x)
        if self.features is not None and isinstance(self.task.model, OnFeatures):
            x = compute_features(self.task.model, self.features, x)
        return x

    def probabilities(self, x: Tensor) -> Tensor:
        """Probabilities (n, classes, *spatial) of network inputs x, computed as in the evaluation; of a number its
        place in the range, (n, 1).
        """
        if self.window is not None:
            return predict_probabilities(self.task, self.module, x, self.window)
        return Calibrated(self.module, self.centring).probabilities(self.task, x)

    def verdict(self, x: Tensor) -> Verdict | None:
        """Whether a study's network inputs x are unlike the training patients'; None if unknown."""
        return None if isinstance(self.likeness, str) else self.likeness.verdict(self.module, x, self.window)


def digest_of(data: bytes) -> str:
    """The digest that identifies a model's file: 16 letters of its SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def ended_in(facts: Mapping[str, Json]) -> str:
    """Why a model's training ended before its last round, in words; empty: it did not, or nobody said."""
    if facts.get("ended") in (None, COMPLETE):
        return ""
    of = f" of {facts['rounds']}" if facts.get("rounds") else ""
    return f"cut off by the hospital's privacy {facts['ended']} after {facts.get('rounds_trained')}{of} rounds"


def find_window(facts: Mapping[str, Json], task: Task) -> tuple[int, ...] | None:
    """Sides of the network's input window; None = whole images. Of a model that is trained on patches, theirs."""
    return task.patch if facts.get("window") is None else tuple(wholes_of(facts, "window"))


def _read_window(facts: Mapping[str, Json], task: Task) -> tuple[int, ...] | None:
    """As `find_window`.

    Raises:
        ValueError: it has other sides than the images of the task, or larger ones.
    """
    sides, window = task.inputs[1:], find_window(facts, task)
    if window is not None and (
        len(window) != len(sides) or not all(1 <= side <= most for side, most in zip(window, sides, strict=True))
    ):
        raise ValueError(f"window must have {len(sides)} sides within {list(sides)}, found {list(window)}")
    return window


def read_ready(path: Path) -> Ready:
    """Read a finished model.

    Raises:
        ValueError: it is not one, is damaged, or was written by a later version.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        ready = parse_ready(data)
    except LaterVersion as error:
        raise LaterVersion(f"{path}: {error}") from error
    except ValueError as error:
        raise ValueError(
            f"{path} is not a model to predict with ({error}); give a file of a site's {READY}/ folder, "
            "runs/<name>/sites/<site>/ready/<method>.safetensors"
        ) from error
    return replace(ready, likeness=read_likeness(path.with_name(f"{path.stem}{ENDING}"), ready.digest))


def parse_ready(data: bytes) -> Ready:
    """A finished model from the bytes of its file, without statistics of training patients, which are not in it.

    Raises:
        ValueError: it is not one, is damaged, too large (`pipelines.models.size_limits`), or of a later version.
    """
    try:
        message = from_bytes(unseal_parts(data))
        facts = message.facts
        check_format(facts["format"], FORMAT, "this model")
        if not isinstance(facts.get("label"), str) or not is_name(str(facts["label"])):
            raise ValueError(f"its label must be a method's name, a-z 0-9 _ -, found {facts.get('label')!r:.60}")
        with permit_packages(read_permitted_packages(facts), unless_set=True):
            model = MODEL.validate_json(json.dumps(facts["model"]), strict=True)
            kind = KIND.validate_python(facts.get("kind", "classification"))
            inputs, ordered = tuple(wholes_of(facts, "inputs")), facts.get("ordered") is True
            task = Task(model, inputs, whole_of(facts, "classes"), kind, ordered=ordered)
            algorithm = ALGORITHM.validate_json(json.dumps(facts["algorithm"]), strict=True)
            refuse_other_code(facts, algorithm, model)
            ours = (PREFIX, SCALED, FIXED)
            module_tensors = {n: t for n, t in message.tensors.items() if not n.startswith(ours) and n != CENTRING}
            scaled = {n.removeprefix(SCALED): t for n, t in message.tensors.items() if n.startswith(SCALED)}
            features = from_tensors(scaled, model) if isinstance(model, OnFeatures) else None
            if features is not None and isinstance(model, Clip):
                task = replace(task, frozen=read_text_transformer(model, features.weights))
            if problems := find_size_problems(algorithm, task, Work()):
                raise ValueError("; ".join(problems))
            module = loaded(algorithm.network(task), module_tensors).eval()
            write_fixed_in(
                module, {n.removeprefix(FIXED): t for n, t in message.tensors.items() if n.startswith(FIXED)}
            )
            images = IMAGES.validate_json(json.dumps(facts["images"]), strict=True)
            source = SOURCE.validate_json(json.dumps(facts["source"]), strict=True)
            translate = build_translation(message)
        scale, axes = from_json(facts["scale"]), axes_from_json(facts.get("axes"))
        origin = ORIGIN.validate_json(json.dumps(dict(facts)), strict=True)
        names = _read_names(facts, task)
        regions = read_regions(facts, names) if task.kind == "segmentation" else {}
        return Ready(
            *(module, task, images, source, bool(facts["gland"]), scale, axes, origin, translate),
            names=names,
            ordered=ordered,
            digest=digest_of(data),
            window=_read_window(facts, task),
            centring=_read_centring(message.tensors.get(CENTRING)),
            features=features,
            number=_read_number(facts, task),
            regions=regions,
            largest=_read_largest(facts, task, len(regions) or task.classes - 1),
        )
    except LaterVersion:
        raise
    except (Malformed, NotPermitted, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(words_of(error)) from error


def _read_largest(facts: Mapping[str, Json], task: Task, most: int) -> tuple[int, ...]:
    """The structures of which only the largest component is kept. most: their number. Raises: ValueError: they are none
    of the task's.
    """
    numbers = tuple(wholes_of(facts, LARGEST)) if LARGEST in facts else ()
    if numbers and (task.kind != "segmentation" or not all(1 <= number <= most for number in numbers)):
        raise ValueError(f"{LARGEST} must name structures of a mask, from 1 to {most}, found {[*numbers]}")
    return numbers


def _read_number(facts: Mapping[str, Json], task: Task) -> LabelRange | None:
    """What is predicted and its range. Raises: ValueError: a model of numbers lacks it, or another has one."""
    number = read_range(facts)
    if (number is None) == (task.kind == "regression"):
        raise ValueError(f"a model of kind {task.kind} {'needs' if number is None else 'has no'} range of numbers")
    return number


def _read_centring(tensor: Tensor | None) -> Centring | None:
    if tensor is None:
        return None
    offset, spread = tensor.double().tolist()
    if not math.isfinite(offset) or not spread > 0:
        raise ValueError(f"{CENTRING} must hold a number and a positive number, found {offset} and {spread}")
    return Centring(offset, spread)


def _read_names(facts: Mapping[str, Json], task: Task) -> tuple[str, ...]:
    """One name for each class but the background in segmentation, for each label of more than two, and for each
    finding; older files of two labels have no such fact.
    """
    names = tuple(str(name) for name in as_list(facts.get("names", [])))
    labels = task.classes if task.classes > 2 or task.kind == "findings" else 0
    needed = task.classes - 1 if task.kind == "segmentation" else labels
    if len(names) != needed or not all(map(is_name, names)):
        raise ValueError(f"{needed} names of classes, made of a-z 0-9 _ -, are needed, found {list(names)}")
    return names


def build_translation(message: Message) -> Callable[[Tensor], Tensor]:
    """A function that brings one study's examples, in the cohort's unit, into the model's space.

    Raises:
        ValueError: the settings in the file are invalid.
    """
    translated = message.facts.get("translated")
    if not isinstance(translated, dict):
        return lambda x: x
    settings = SETTINGS.validate_json(json.dumps(translated["settings"]), strict=True)
    scale = SCALE.validate_json(json.dumps(translated["scale"]), strict=True)
    params = {name.removeprefix(PREFIX): t for name, t in message.tensors.items() if name.startswith(PREFIX)}

    def translate(x: Tensor) -> Tensor:
        nobody_else = torch.zeros(len(x), dtype=torch.int64)
        return scale.back(settings.translate(params, scale.into(x), nobody_else))

    return translate
