"""The file of exported models: one sealed file with everything that an external site needs to use them.

The stage `route` writes it, only from models that sites released to recipients `outside`; `pipelines.external.run`
reads it. It describes networks, names of classes and the settings of images, and names the sites of its models, but
contains no file name, folder, patient, count or scale of theirs. Nothing in the file is executed: tensors are compared
with the network that the facts describe before one is built, and facts are parsed as strictly as YAML.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from federation.descent import Work
from federation.models import NamedModel
from federation.parameters import prefixed, read_parameters, section
from federation.registry import NotPermitted
from federation.task import Kind, Task
from personalize import NamedAlgorithm
from pipelines.data.images import AnyImages, Features, Pictures
from pipelines.loader.document import ConfigError, Document
from pipelines.loader.names import is_name
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.models.size_limits import find_size_problems
from pipelines.settings.route import PERSONAL, SHARED
from pipelines.settings.task import MOST_LABELS, MOST_MASK_CLASSES
from privacy.formats import LaterVersion, check_format
from privacy.message import (
    FACTS,
    Json,
    Malformed,
    Message,
    Params,
    as_mapping,
    from_bytes,
    seal_parts,
    to_bytes,
    unseal_parts,
)
from privacy.settings_error import Problem, refuse

T = TypeVar("T")
ADAPTED = "adapted"
"""The fact `what` of an adapted model (`pipelines.external.adapted`)."""
GLOBAL = "*"
"""The expert that is the federation's shared model; the others have the names of their sites."""
LARGEST = 2**33  # bytes of a file that is opened
LONGEST_TEXT = 200  # characters of a title
SEAL = 32  # bytes before the safetensors
SHOWN = 3  # names of tensors in a message


@dataclass(frozen=True, kw_only=True)
class Part:
    """Settings from which the network of some experts is built."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    algorithm: NamedAlgorithm
    model: NamedModel


@dataclass(frozen=True, kw_only=True)
class ModelsDescription:
    """The facts of a file. run, title: of the federation's run. kind, names: the kind of task and its classes, class 0
    first. ordered: whether each is more than the one before it. images: settings of examples. gland: whether with gland
    masks. experts: in order, the shared one last. personal, shared: their networks; null = the file has none of them.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    what: Literal["models"] = "models"
    format: Literal[1] = 1
    run: str
    title: str
    kind: Kind
    names: tuple[str, ...]
    ordered: bool = False
    inputs: tuple[int, ...]
    images: AnyImages
    gland: bool
    experts: tuple[str, ...]
    personal: Part | None = None
    shared: Part | None = None

    def __post_init__(self) -> None:
        problems = [] if is_name(self.run) else [Problem(("run",), "is not made of a-z 0-9 _ -, at most 80")]
        if len(self.title) > LONGEST_TEXT or not self.title.isprintable():
            problems.append(Problem(("title",), f"at most {LONGEST_TEXT} printable characters are allowed"))
        most = MOST_LABELS if self.kind == "classification" else MOST_MASK_CLASSES + 1
        if not 2 <= len(set(self.names)) == len(self.names) <= most or not all(map(is_name, self.names)):
            problems.append(Problem(("names",), f"2 to {most} different names made of a-z 0-9 _ - are needed"))
        if self.inputs != self.images.inputs:
            text = f"are {list(self.inputs)}, and its images are {list(self.images.inputs)}"
            problems.append(Problem(("inputs",), text))
        personal = [name for name in self.experts if name != GLOBAL]
        if not self.experts or len(set(self.experts)) < len(self.experts) or not all(map(is_name, personal)):
            problems.append(Problem(("experts",), "must be different names made of a-z 0-9 _ -, or *"))
        elif bool(personal) != (self.personal is not None) or (self.experts[-1] == GLOBAL) != (self.shared is not None):
            problems.append(Problem(("experts",), "sites' models need `personal`, and the last, *, needs `shared`"))
        elif GLOBAL in self.experts[:-1]:
            problems.append(Problem(("experts",), "* must be the last"))
        refuse(problems + image_problems(self.images))

    def part_of(self, expert: str) -> Part:
        """Settings of the expert's network."""
        part = self.shared if expert == GLOBAL else self.personal
        if part is None:
            raise KeyError(expert)
        return part

    def task(self, part: Part) -> Task:
        """The task of a part. Raises: ValueError: its network is for the other kind of task."""
        return Task(part.model, self.inputs, len(self.names), self.kind, ordered=self.ordered)


@dataclass(frozen=True)
class Models:
    """A valid file. experts: parameters by name, in order. digest: of the file, 16 hexadecimal digits."""

    described: ModelsDescription
    experts: Mapping[str, Params]
    digest: str


def shown_names(described: ModelsDescription) -> tuple[str, ...]:
    """Names of classes as `Ready` has them."""
    if described.kind == "segmentation":
        return described.names[1:]
    return described.names if len(described.names) > 2 else ()


def image_problems(images: AnyImages) -> list[Problem]:
    """Why an external site cannot make such images."""
    if isinstance(images, Pictures) and images.fit == "around":
        text = "around cuts every picture about its own mask, and a hospital that has no masks cannot; train with "
        return [Problem(("images", "fit"), f"{text}squash or crop")]
    if not isinstance(images, Features):
        return []
    problems = []
    if images.normalize in ("site", "pooled"):
        whose = {"site": "each hospital's own patients", "pooled": "the hospitals' patients"}[images.normalize]
        text = f"{images.normalize} scales features by means and spreads of {whose}, which nobody agreed to hand "
        problems.append(
            Problem(("images", "normalize"), f"{text}to external sites; train with declared ranges, or none")
        )
    if images.components is not None:
        text = "each hospital has axes of its own patients, and an external site has none"
        problems.append(Problem(("images", "components"), text))
    return problems


def models_bytes(described: ModelsDescription, experts: Mapping[str, Params]) -> bytes:
    """The bytes of the file. experts: parameters by name, as `described.experts` names them."""
    tensors = {name: value for expert in described.experts for name, value in prefixed(expert, experts[expert]).items()}
    return seal_parts(to_bytes(Message(tensors, as_mapping(to_plain(described)))))


def read_models(path: Path) -> Models:
    """Read a file of models, without trusting its contents.

    Raises:
        ValueError: it is none, is damaged or malformed, is too large, or of another version.
        OSError: it cannot be read.
    """
    try:
        message, digest = read_sealed(path)
        described = parse_facts(message.facts, ModelsDescription)
        return Models(described, checked_experts(described, message.tensors), digest)
    except LaterVersion as error:
        raise LaterVersion(f"{path}: {error}") from error
    except (Malformed, NotPermitted, ValueError) as error:
        raise ValueError(
            f"{path} is not a file of models ({_one_line(error)}); give models.safetensors, which the stage route of a "
            "run writes"
        ) from error


def read_sealed(path: Path) -> tuple[Message, str]:
    """A sealed message and the digest of its file.

    Raises:
        Malformed: it is damaged, or no such message.
        ValueError: it is too large.
        OSError: it cannot be read.
    """
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"it has {size} bytes; at most {LARGEST} are read")
    data = path.read_bytes()
    return from_bytes(unseal_parts(data)), hashlib.sha256(data).hexdigest()[:16]


def parse_facts(facts: Mapping[str, Json], kind: type[T]) -> T:
    """Parse facts into settings; no key may be missing or unknown.

    Raises:
        LaterVersion: a newer program wrote them. ConfigError: with every problem.
    """
    check_format(facts.get("format"), 1, "this file")
    return validate_settings(Document(dict(facts), {}), kind)


def what_is(path: Path) -> str:
    """The fact `what` of a sealed file, without reading its tensors; empty if it has none or is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(SEAL)
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, path.stat().st_size)))
        kind = json.loads(header["__metadata__"][FACTS])["what"]
    except (OSError, struct.error, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return kind if isinstance(kind, str) else ""


def checked_experts(described: ModelsDescription, tensors: Params) -> dict[str, Params]:
    """Each expert's parameters, checked to have the names, shapes and types of its network and to be finite.

    Raises:
        ValueError: they have not, or the network exceeds the size limits; all experts are named at once.
    """
    expected_shapes: dict[str, dict[str, tuple[torch.Size, torch.dtype]]] = {}
    for which, part in ((PERSONAL, described.personal), (SHARED, described.shared)):
        if part is not None:
            expected_shapes[which] = _expected_shapes(described, part, which)
    params_by_expert, problems = dict[str, Params](), []
    for expert in described.experts:
        params = section(tensors, expert)
        problems += _find_misfits(expert, params, expected_shapes[SHARED if expert == GLOBAL else PERSONAL])
        params_by_expert[expert] = params
    known = {name for expert, params in params_by_expert.items() for name in prefixed(expert, params)}
    if more := sorted(set(tensors) - known):
        problems.append(f"tensors of no expert: {_join_names(more)}")
    if problems:
        raise ValueError("; ".join(problems))
    return params_by_expert


def _expected_shapes(described: ModelsDescription, part: Part, which: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shapes and types of the part's network, found without allocating it."""
    try:
        task = described.task(part)
        if problems := find_size_problems(part.algorithm, task, Work()):
            raise ValueError("; ".join(problems))
        with torch.device("meta"):
            made = read_parameters(part.algorithm.network(task))
    except (RuntimeError, OverflowError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{which}: no network can be built ({error})") from error
    return {name: (value.shape, value.dtype) for name, value in made.items()}


def _find_misfits(expert: str, params: Params, expected: Mapping[str, tuple[torch.Size, torch.dtype]]) -> list[str]:
    odd = sorted(params.keys() ^ expected.keys())
    odd += [name for name, value in params.items() if name in expected and (value.shape, value.dtype) != expected[name]]
    if odd:
        return [f"the model {expert} is not of its network: {_join_names(odd)}"]
    wild = sorted(name for name, value in params.items() if not _is_finite(value))
    return [f"the model {expert} has numbers that are not finite: {_join_names(wild)}"] if wild else []


def _is_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:80]) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _one_line(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(": ".join(part for part in (p.path, p.message) if part) for p in error.problems[:SHOWN])
    return str(error)
