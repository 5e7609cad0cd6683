"""A small federation for tests: tables, a linear model, sites in memory, and engines that lose replies on request."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from federation import wire
from federation.algorithm import Algorithm
from federation.conversation import answer_once, load_memory
from federation.descent import Site, Work
from federation.engine import Answers, InProcess, Worker
from federation.membership import is_separable
from federation.merging import MEAN, Rule
from federation.models.cnn import Norm
from federation.models.mlp import Mlp, MlpModule
from federation.models.unet import UNet
from federation.outcome import Outcome
from federation.participant import answer_training_call, list_rounds, prune_models
from federation.patches import build_patch_views
from federation.randomness import derive_seed, use_seed
from federation.rehearsal import Forms, initial_parameters, rehearse_forms
from federation.rounds import Schedule, Trust, conduct_training
from federation.summing import KEY, KEYS, hide_reply
from federation.task import Kind, Output, Task, overlap_loss
from federation.upload import Int8, pack_reply
from privacy.dp.access import Access, Rows, Split, open_access
from privacy.dp.events import NOTHING, Event
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.folder import Folder
from privacy.message import Buffer, Call, Message, Params, as_mapping, from_bytes, unseal_parts
from privacy.release.gate import Refused
from privacy.secure_sum import KeyPair


@dataclass
class MemoryFolder:
    """A folder in memory."""

    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        self.files[name] = bytes(data)

    def write_parts(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write a file of parts."""
        self.write(name, b"".join(parts))

    def read(self, name: str) -> bytes:
        """A file. Raises: FileNotFoundError: there is none."""
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def map(self, name: str) -> memoryview:
        """A file's bytes in memory of the reader's own."""
        return memoryview(bytearray(self.read(name)))

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return name in self.files

    def names(self) -> list[str]:
        """Names of the files, sorted."""
        return sorted(self.files)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self.files.pop(name, None)


@dataclass(frozen=True)
class Linear:
    """A linear model with half the squared error: a quadratic per site, whose optimum is known in closed form."""

    name: str = "linear"

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        return MlpModule(inputs[0], classes, (), 0.0)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        return 0.5 * ((output.logits - y.to(output.logits.dtype)[:, None]) ** 2).sum(dim=1)


def make_table(seed: int, n: int = 24, d: int = 4, *, shift: float = 0.0) -> dict[Split, Rows]:
    """Splits of a small binary table; `shift` makes sites differ."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n + 8, d, generator=g) + shift
    y = (x[:, 0] + 0.5 * torch.randn(n + 8, generator=g) > shift).long()
    patient = torch.arange(n + 8) // 2
    return {
        "train": Rows(x[:n], y[:n], patient[:n]),
        "validation": Rows(x[n:], y[n:], patient[n:]),
    }


def make_task(d: int = 4, hidden: tuple[int, ...] = (6,)) -> Task:
    """A task on `table`, with a network of one hidden layer."""
    return Task(Mlp(hidden=hidden), (d,), 2)


def make_scenes(seed: int, n: int = 4, side: int = 8, *, shift: float = 0.0) -> dict[Split, Rows]:
    """Splits of small images with masks of three classes of brightness; `shift` makes sites differ."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n + 4, 1, side // 2, side // 2, generator=g).repeat_interleave(2, -1).repeat_interleave(2, -2)
    y = ((x[:, 0] > 0.4 + shift).long() + (x[:, 0] > 0.7 + shift).long()).long()
    x, patient = x + 0.2 * torch.randn(x.shape, generator=g), torch.arange(n + 4) // 2
    return {
        "train": Rows(x[:n], y[:n], patient[:n]),
        "validation": Rows(x[n:], y[n:], patient[n:]),
    }


def dense_task(side: int = 8, norm: Norm = "batch") -> Task:
    """A task on `scenes`, with a U-Net."""
    return Task(UNet(width=4, levels=1, norm=norm), (1, side, side), 3, "segmentation")


@dataclass(frozen=True)
class Pixelwise:
    """A class for each pixel from two normed convolutions: made in a tenth of the time of the smallest U-Net."""

    kind: ClassVar[Kind] = "segmentation"
    name: str = "pixelwise"
    width: int = 4
    norm: Norm = "batch"

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        return PixelwiseModule(inputs[0], classes, self)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        return overlap_loss(output, y)


class PixelwiseModule(nn.Module):
    """Parts are named as in every network: `stem`, `blocks.0`, `head`."""

    kind: ClassVar[Kind] = "segmentation"

    def __init__(self, channels: int, classes: int, settings: Pixelwise) -> None:
        super().__init__()
        width, batch = settings.width, settings.norm == "batch"
        self.stem, block = (
            nn.Sequential(
                nn.Conv2d(before, width, 3, padding=1, bias=not batch),
                nn.BatchNorm2d(width) if batch else nn.GroupNorm(2, width),
                nn.ReLU(),
            )
            for before in (channels, width)
        )
        self.blocks = nn.ModuleList([block])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return Output(self.head(h), h)


def mask_task(side: int = 8, norm: Norm = "batch") -> Task:
    """Masks of three classes as in `dense_task`, with a network that takes less time than a U-Net."""
    return Task(Pixelwise(norm=norm), (1, side, side), 3, "segmentation")


@dataclass
class Hospital:
    """A site's worker with its disk: the same calls as the real one, without patients' files."""

    name: str
    splits: Mapping[Split, Rows]
    algorithm: Algorithm
    task: Task
    work: Work
    seed: int = 0
    disk: Folder = field(default_factory=MemoryFolder)
    models: Folder = field(default_factory=MemoryFolder)
    trained: int = 0
    protection: Protection | None = None
    events: list[Event] = field(default_factory=list)
    keys: KeyPair | None = None
    rounds: int = 1
    averaged: bool = True
    upload: bool = False

    def __call__(self, call: Call, message: Message) -> Message:
        def work(memory: Message) -> tuple[Message, Message]:
            self.trained += call.request == "train"
            seed = derive_seed(self.seed, self.stream, call.round, call.request)
            access = self.access(seed)
            site = Site(self.name, self.task, self.work.at_round(call.round, self.rounds), access)
            with use_seed(seed):
                averaged = self.averaged and not is_separable(self.algorithm)
                reply, after = answer_training_call(
                    self.algorithm, site, call, message, memory, self.models, averaged=averaged
                )
            self.events += access.events
            if self.upload and call.request == "train":
                return pack_reply(self.algorithm, reply, message, after)
            return self.hide(call, message, reply), after

        answer = answer_once(self.disk, call, self.name, work)
        best = message.facts.get("best")
        if not answer.again and call.request != "introduce":
            memories = (answer.memory, load_memory(self.disk, call.merged.get(self.name, 0)))
            prune_models(self.models, memories, best=best if isinstance(best, int) else None, newest=call.round - 1)
        return from_bytes(answer.reply)

    def hide(self, call: Call, message: Message, reply: Message) -> Message:
        """The reply, with the public key in an introduction, and hidden where the question names a sum."""
        if self.keys is not None and call.request == "introduce":
            return Message(reply.tensors, {**reply.facts, KEY: self.keys.public})
        if self.keys is None or KEYS not in message.facts:
            return reply
        keys = {site: str(key) for site, key in as_mapping(message.facts[KEYS]).items()}
        return hide_reply(self.algorithm, reply, secret=self.keys.secret, keys=keys, site=self.name, call=call)

    def access(self, seed: int) -> Access:
        patch, work = self.task.patch, self.work
        augment = None if patch is None else build_patch_views(patch, work.foreground, self.task.classes)
        if self.protection is None:
            return open_access(
                self.splits,
                batch=work.batch,
                seed=seed,
                balance=work.balance,
                augment=augment,
                passes=work.passes,
                mixup=work.mixup,
            )
        source = random.Random(seed).randbytes
        return open_private(self.splits, self.protection, augment=augment, counts=NOTHING, source=source)

    @property
    def stream(self) -> str:
        return self.name


@dataclass
class SerializingEngine:
    """An engine that serializes every message, as for a network."""

    workers: Mapping[str, Worker]

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self.workers))

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        remote = {site: partial(self.exchange, worker) for site, worker in self.workers.items()}
        return InProcess(remote).ask(call, messages, deadline_s=deadline_s)

    @staticmethod
    def exchange(worker: Worker, call: Call, message: Message) -> Message:
        reply = wire.read_answer(wire.answer(worker, wire.build_question(call, message)))
        if isinstance(reply, str):
            raise Refused(reply)
        return reply


@dataclass
class LossyEngine:
    """An engine that loses the reply of `site` in the given rounds, after the site has committed it."""

    inner: InProcess
    lose: frozenset[tuple[int, str]]

    @property
    def sites(self) -> tuple[str, ...]:
        return self.inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        lost = {s for s in answers.replies if (call.round, s) in self.lose and call.request == "train"}
        delivered = {s: r for s, r in answers.replies.items() if s not in lost}
        return Answers(delivered, {**answers.missing, **dict.fromkeys(lost, "lost")})


def make_federation(
    algorithm: Algorithm,
    splits: Mapping[str, Mapping[Split, Rows]],
    *,
    task: Task,
    work: Work,
    per_site: Callable[[str], Algorithm] | None = None,
) -> dict[str, Hospital]:
    """New hospitals with these patients. per_site: the method as a site has it, if they differ."""
    return {
        name: Hospital(name, rows, per_site(name) if per_site else algorithm, task, work)
        for name, rows in splits.items()
    }


@cache
def build_opening(method: Hashable, task: Task, work: Work, dtype: torch.dtype) -> tuple[Params, Forms]:
    """The common start, and the forms of an introduction and a reply: the same each time, so made once."""
    algorithm = cast(Algorithm, method)
    initial = initial_parameters(algorithm, task, seed=1)
    return initial, rehearse_forms(algorithm, task, work, initial)


def train(
    algorithm: Algorithm,
    hospitals: Mapping[str, Worker],
    *,
    task: Task,
    work: Work,
    schedule: Schedule,
    engine: object | None = None,
    folder: Folder | None = None,
    between: Callable[[Outcome], None] = lambda outcome: None,
    run: str = "law",
    secure_sum: bool = False,
    rule: Rule = MEAN,
    counts: Mapping[str, Mapping[str, int]] | None = None,
    upload: bool = False,
) -> Outcome:
    """A whole run. engine: to the hospitals, if not directly; folder: the coordinator's disk; between: after rounds.
    secure_sum: replies are hidden in sums; then every hospital has `keys`. rule, counts: as `federation.rounds.Trust`.
    upload: replies are quantized; then every hospital has `upload`.
    """
    initial, forms = build_opening(cast(Hashable, algorithm), task, work, torch.get_default_dtype())
    return conduct_training(
        engine or InProcess(hospitals),  # type: ignore[arg-type]
        algorithm,
        run=run,
        initial={name: value.clone() for name, value in initial.items()},
        opening={name: Message() for name in hospitals},
        forms=forms,
        schedule=schedule,
        seed=0,
        folder=folder or MemoryFolder(),
        between=between,
        trust=Trust(rule=rule, counts=counts or {}, secure_sum=secure_sum, upload=Int8() if upload else None),
    )


def newest_model(hospital: Hospital) -> dict[str, Tensor]:
    """The newest model of a site."""
    newest = list_rounds(hospital.models)[-1]
    return dict(from_bytes(unseal_parts(hospital.models.read(f"{newest}"))).tensors)


def are_equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Whether two models are equal bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def are_close(left: Mapping[str, Tensor], right: Mapping[str, Tensor], tolerance: float) -> bool:
    """Whether two models are equal to a tolerance."""
    return left.keys() == right.keys() and all(torch.allclose(left[k], right[k], atol=tolerance) for k in left)
