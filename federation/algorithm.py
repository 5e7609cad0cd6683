"""The interface of a federated learning method: a frozen dataclass of hyper-parameters with eight short functions.

Read this file first. A method never sees a file, a clock or an engine, and only `complaints` knows whether training is
private. Its state (at the coordinator) and its memory (at a site) are messages, so a run can be stopped, resumed,
replayed and audited without code in the method. Tensors in a message are named `<role>/<parameter or buffer>`, as in
`model/head.weight` or `control/head.weight`; in a site's memory a suffix may follow (`optimizer/head.weight/exp_avg`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from torch import nn

from federation.descent import Site, Work
from federation.task import Task
from federation.torchio_views import Spacing, find_view_problems
from privacy.message import Call, Message, Params
from privacy.settings_error import Problem

State: TypeAlias = Message
Memory: TypeAlias = Message
Recipient: TypeAlias = Literal["coordinator", "sites"]
"""Who receives a site's replies: only the coordinator, or also all other sites, to which the coordinator sends them."""


class Algorithm(Protocol):
    """A federated learning method. Its dataclass fields are its YAML keys."""

    @property
    def name(self) -> str:
        """The method's name in YAML."""
        ...

    def network(self, task: Task) -> nn.Module:
        """The network that a site trains, the same at all sites, except of `own_networks`. The coordinator builds one
        to get `initial`.
        """
        ...

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        """Why this method cannot be used with this network, this local work or private training; empty = no problem."""
        ...

    def introduce(self, site: Site) -> Message:
        """At a site, before round 1: what the coordinator needs for the initial state. Often empty."""
        ...

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        """At the coordinator: the state before round 1."""
        ...

    def send(self, state: State, site: str, call: Call) -> Message:
        """At the coordinator: the message to one site in this round. It may differ between sites."""
        ...

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        """At a site: one round of local training. The reply goes to the coordinator, the memory stays at the site."""
        ...

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        """At the coordinator: the next state, from the replies of a round (sorted by site)."""
        ...

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        """At a site, after a merge: the parameters of the model that it evaluates and uses; they fit `network()`."""
        ...


def has_one_model(algorithm: Algorithm) -> bool:
    """Whether every hospital ends with the model that the coordinator sent to all, and none with one of its own. A
    method declares this by a class attribute `one_model`.
    """
    return _declares(algorithm, "one_model")


def is_summable(algorithm: Algorithm) -> bool:
    """Whether one reply with the weighted mean of all leads to the same state as all of them (`federation.summing`). A
    method declares this by a class attribute `summable`.
    """
    return _declares(algorithm, "summable")


def is_averaging(algorithm: Algorithm) -> bool:
    """Whether the state depends on the tensors of replies only through their weighted means, so that another rule can
    take the mean's place (`federation.merging`). A method declares this by a class attribute `averaging`.
    """
    return _declares(algorithm, "averaging")


def allows_own_networks(algorithm: Algorithm) -> bool:
    """Whether hospitals may have networks of unlike shapes: nothing is read of another's but what `Task.shared` names.
    A method declares this by a class attribute `own_networks`.
    """
    return _declares(algorithm, "own_networks")


def sends_gradient_sums(algorithm: Algorithm) -> bool:
    """Whether nothing of patients leaves, or is remembered, but sums of gradients: hospitals can share their noise. A
    method declares this by a class attribute `shares_noise`.
    """
    return _declares(algorithm, "shares_noise")


def _declares(algorithm: Algorithm, promise: str) -> bool:
    """Whether the method's own class makes a promise. One that was inherited is not of the functions that changed."""
    return vars(type(algorithm)).get(promise) is True


def find_class_needs(algorithm: Algorithm, task: Task) -> list[str]:
    """A sentence if a method needs classes, one an example, and the task learns a number or several findings. A method
    declares this by an attribute or property `needs_classes`, which says what for; a class that inherits its functions
    inherits it, too.
    """
    why: str = getattr(algorithm, "needs_classes", "")
    if task.kind not in ("regression", "findings") or not why:
        return []
    what = "a number" if task.kind == "regression" else "several findings"
    return [f"{algorithm.name} needs classes, and the task is {what}: {why}; leave this method out"]


def find_work_problems(algorithm: Algorithm, task: Task, work: Work, spacing: Spacing | None = None) -> list[Problem]:
    """Settings of local work that would have no meaning for this task, or no effect in this method.

    A method that learns by no loss of the task says by an attribute `without_loss` how it learns: it takes no notice of
    what is said of losses and batches, as of the learning rate. One that takes no batches says by `without_batches`
    what it takes. spacing: of images; None = not known.
    """
    problems: list[Problem] = []
    if work.label_smoothing and task.smoothing_refusal:
        problems.append(Problem(("label_smoothing",), f"{work.label_smoothing:g}, and {task.smoothing_refusal}"))
    if work.mixup and task.kind == "segmentation":
        text = f"{work.mixup:g} lays two images over one another, and where their masks differ no class is right"
        problems.append(Problem(("mixup",), f"{text}; say mixup: 0"))
    elif work.mixup and not without_loss(algorithm) and (why := without_batches(algorithm)):
        remedy = f"give it work of its own, as in method_work: {{{algorithm.name}: {{mixup: 0}}}}"
        problems.append(
            Problem(("mixup",), f"{work.mixup:g} blends batches, and {algorithm.name} has none: {why}; {remedy}")
        )
    if work.foreground and task.patch is None:
        what = getattr(task.model, "name", type(task.model).__name__)
        text = f"{work.foreground:g} is for patches, and {what} is trained on whole images; say 0, or take planned"
        problems.append(Problem(("foreground",), text))
    if not without_batches(algorithm):  # else nobody draws views
        if work.augment != "none" and len(task.inputs) < 3:
            text = f"{work.augment} is for images, not for features; examples are {list(task.inputs)}; say none"
            problems.append(Problem(("augment",), text))
        if work.randomize and len(task.inputs) < 3:
            text = f"{work.randomize:g} disturbs images, and examples are features, {list(task.inputs)}; say 0"
            problems.append(Problem(("randomize",), text))
        problems += [each.within("torchio") for each in find_view_problems(work.torchio, task.trained_inputs, spacing)]
    return problems


def without_loss(algorithm: Algorithm) -> str:
    """How a method learns that learns by no loss of the task; empty for all others."""
    why: str = getattr(algorithm, "without_loss", "")
    return why


def without_batches(algorithm: Algorithm) -> str:
    """What a method takes that takes no batches of training examples; empty for all others."""
    why: str = getattr(algorithm, "without_batches", "") or without_loss(algorithm)
    return why


@runtime_checkable
class Absorbing(Protocol):
    """What a method has in addition that remembers what it said, where replies are rounded (`federation.upload`)."""

    def absorb(self, memory: Params, lost: Params, received: Message) -> Params:
        """At a site: the memory of a reply of which `lost` is not read: what it says minus what the coordinator reads,
        by the names of its tensors. received: what it answers.
        """
        ...


def recipient_of(algorithm: Algorithm) -> Recipient:
    """Who receives a site's introduction and its replies in training.

    `sites`: the coordinator sends one site's tensors to other sites unchanged, scaled, or in a mixture in which one
    site may dominate. An average over all sites does not count, although with few sites it can be taken apart.
    A method declares this by an attribute or property `recipient`; without one it is `coordinator`.
    """
    recipient: Recipient = getattr(algorithm, "recipient", "coordinator")
    return recipient
