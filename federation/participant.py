"""A site's side of federated training: `introduce`, `train` and `finish`, for any algorithm.

In addition to the algorithm, a site scores the merged model that it just received on its own validation patients, keeps
the models that a checkpoint may still need, and records its losses. All of it is memory: a message that is committed
together with the reply. Model files are written under the number of their round; if one is written twice, its bytes are
the same. A method's `notes` in the facts of its memory (a lambda, a cosine, weights of other sites) are stored by round
for the site's own page, and never leave.

Federated checkpointing (FENDA-FL, section 3.4): `latest` is the model after the last merge, `local` the one with the
lowest validation loss at this site, `global` the one of the round with the lowest example-weighted mean of all sites'
losses; only rounds that every site with validation patients scored are compared. `average` is no single round's: see
`average_model`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeAlias

import torch
from torch import nn

from federation.algorithm import Algorithm, Memory
from federation.descent import Site
from federation.models.adapted import fixed_in
from federation.models.fixed import compute_fixed_digest
from federation.randomness import use_seed
from federation.spare_network import borrow_network
from federation.task import Task
from privacy.folder import Folder
from privacy.message import (
    LARGE,
    Buffer,
    Call,
    Json,
    Malformed,
    Message,
    Params,
    add_checksum,
    as_mapping,
    count_bytes,
    from_bytes,
    lay_out_bytes,
    unseal_parts,
    whole_of,
)

Checkpoint: TypeAlias = Literal["latest", "global", "local", "average"]
CHECKPOINTS: tuple[Checkpoint, ...] = ("latest", "global", "local")
"""Those that every run has; `average` is kept where the run asks for it."""
UNCHOSEN: tuple[Checkpoint, ...] = ("latest", "average")
"""Those for which no validation patient is needed."""
AVERAGE = "average-"
"""How the names of averaged models begin; those of single rounds are the round's number."""
EMPHASIS = 3
"""How much the average prefers later models: the last of k has the weight (EMPHASIS + 1) / (EMPHASIS + k)."""
NOTES = "notes"
FIGURES, SECONDS = "figures", "seconds"
"""Facts of a memory: by round what was measured of its model, and there the seconds of local work."""
FIXED = "fixed"
Look: TypeAlias = Callable[[nn.Module], Mapping[str, Json]]
"""What measures a model at its hospital: it changes nothing, and draws no random number."""


def answer_training_call(
    algorithm: Algorithm,
    site: Site,
    call: Call,
    message: Message,
    memory: Memory,
    models: Folder,
    *,
    averaged: bool = False,
    look: Look | None = None,
) -> tuple[Message, Memory]:
    """Answer one of the three requests of federated training.

    Args:
        message: tensors of the algorithm; facts `algorithm` (of the method), `best` (the globally best round so far, or
            None), and `score`: if it is False, the model is not scored. memory: the memory that this site returned last
            time (empty at first).
        models: the folder with the models of single rounds.
        averaged: whether the average over rounds is kept too.
        look: measures each model that is scored; what it finds, and the seconds of local work, are remembered by round.
            None: neither.

    Returns:
        reply: tensors of the algorithm; facts `algorithm`, `loss` (validation loss of the model after round
        `call.round - 1`, None without validation patients) and `n` (validation examples).
            An introduction has `algorithm`, and the facts of `facts_of_fixed`.
        memory: to be committed with the reply.
    """
    if call.request == "introduce":
        introduction = algorithm.introduce(site)
        return Message(
            introduction.tensors, {"algorithm": dict(introduction.facts), **facts_of_fixed(site.task)}
        ), memory
    received = Message(_move_tensors(site.device, message.tensors), as_mapping(message.facts.get("algorithm")))
    method_memory = Message(_move_tensors(site.device, memory.tensors), as_mapping(memory.facts.get("algorithm")))
    scored = message.facts.get("score") is not False
    losses, validation, params, figures = _score_merged_model(
        algorithm, site, call, received, method_memory, memory, scored=scored, look=look
    )
    packed = _pack_models(models, call, params, memory, averaged=averaged)
    del params
    if call.request == "finish":
        _write_models(models, packed)
        return Message({}, {"algorithm": {}, **validation}), Message(
            memory.tensors, {**memory.facts, "losses": dict(losses), **figures}
        )
    with ThreadPoolExecutor(1) as writer:  # writes to disk during training
        written = writer.submit(_write_models, models, packed)
        began = time.perf_counter()
        sent, new_memory = algorithm.train(site, received, method_memory, call)
        seconds = time.perf_counter() - began
    written.result()
    reply = Message(sent.tensors, {"algorithm": dict(sent.facts), **validation})
    facts = {name: fact for name, fact in new_memory.facts.items() if name != NOTES}
    remembered: dict[str, Json] = {"algorithm": facts, "losses": dict(losses)}
    if look is not None:
        worked: dict[str, Json] = {str(call.round): {SECONDS: seconds}}
        remembered[FIGURES] = {**as_mapping(figures.get(FIGURES)), **worked}
    if NOTES in new_memory.facts:
        remembered[NOTES] = {
            **as_mapping(memory.facts.get(NOTES)),
            str(call.round): _finite_notes(new_memory.facts[NOTES]),
        }
    return reply, Message(new_memory.tensors, remembered)


def facts_of_fixed(task: Task) -> Mapping[str, Json]:
    """The digest of the values that the author of the task's network fixed, as fact `fixed`; empty without such values.

    Fixed values are never sent: each site has those of its own code, so their digests must be compared.
    """
    with use_seed(0):
        fixed = fixed_in(task.network())
    return {FIXED: compute_fixed_digest(fixed)} if fixed else {}


def _score_merged_model(
    algorithm: Algorithm,
    site: Site,
    call: Call,
    received: Message,
    method_memory: Message,
    memory: Memory,
    *,
    scored: bool,
    look: Look | None,
) -> tuple[Mapping[str, Json], dict[str, Json], Params | None, dict[str, Json]]:
    """Score the model after the previous merge, and return it to be kept, unless it is the common start; and the fact
    of figures to remember, none without a look at it.
    """
    losses = as_mapping(memory.facts.get("losses"))
    if call.round <= 1:
        return losses, {"loss": None, "n": 0}, None, {}
    params = algorithm.model(site, received, method_memory)
    with borrow_network(algorithm, site.task, params) as module:
        n = site.size("validation") if scored else 0
        loss = site.measure(module, site.task.validation, "validation") if n else math.nan
        figures = {} if look is None else _remember_figures(memory, call.round - 1, look(module) if n else {})
    finite = loss if math.isfinite(loss) else None
    validation: dict[str, Json] = {"loss": finite, "n": n if finite is not None else 0}
    return {**losses, str(call.round - 1): finite}, validation, params, figures


def _remember_figures(memory: Memory, number: int, measured: Mapping[str, Json]) -> dict[str, Json]:
    """The fact of figures, with what was measured of the model after a round beside that round's seconds."""
    by_round = as_mapping(memory.facts.get(FIGURES))
    of_round: dict[str, Json] = {**as_mapping(by_round.get(str(number))), **measured}
    return {FIGURES: {**by_round, str(number): of_round}}


def _pack_models(
    models: Folder, call: Call, params: Params | None, memory: Memory, *, averaged: bool
) -> dict[str, list[Buffer]]:
    """Name -> parts of the file of the model after the previous round, if there is one, and of its average with earlier
    models.

    They are copied before training goes on, which may change tensors in place. Large ones are written at once instead:
    a copy would lie in memory beside what training needs.

    Raises:
        Malformed: the average of the models before is gone.
    """
    if params is None:
        return {}
    number, packed = call.round - 1, dict[str, list[Buffer]]()
    if averaged:  # written first, so that a model never lies there without its average
        last, count = last_scored_round(memory), 1
        new: Params = {name: value.detach().cpu() for name, value in params.items()}  # files are read onto the CPU
        if last is not None:
            if not models.has(f"{AVERAGE}{last}"):
                raise Malformed(f"the average of the models up to round {last} is gone")
            past = from_bytes(unseal_parts(models.map(f"{AVERAGE}{last}")))
            count = whole_of(past.facts, "models") + 1
            new = average_model(past.tensors, new, count)
        packed[f"{AVERAGE}{number}"] = add_checksum(lay_out_bytes(Message(new, {"models": count})))
    packed[f"{number}"] = add_checksum(lay_out_bytes(Message(params)))
    if sum(map(count_bytes, packed.values())) <= LARGE:
        return {name: [b"".join(parts)] for name, parts in packed.items()}
    _write_models(models, packed)
    return {}


def _write_models(models: Folder, packed: Mapping[str, Sequence[Buffer]]) -> None:
    """Write models under their names."""
    for name, parts in packed.items():
        models.write_parts(name, parts)


def average_model(past: Params, params: Params, count: int) -> Params:
    """The average of `count` models. past: that of all but the last, which is params.

    (1 - c) past + c params, c = (eta + 1) / (eta + count): Shamir and Zhang, Stochastic Gradient Descent for Non-smooth
    Optimization, ICML 2013, section 4 (polynomial-decay averaging); eta is `EMPHASIS`. A decay that does not follow the
    number of models (an exponential moving average) would need another value for each number of rounds. Means and
    variances of batch norm are averaged as weights are; whole numbers are those of the last model.
    """
    share = (EMPHASIS + 1) / (EMPHASIS + count)
    return {
        name: torch.lerp(past[name], value, share) if value.is_floating_point() else value
        for name, value in params.items()
    }


def last_scored_round(memory: Memory) -> int | None:
    """The last round whose model a site with this memory has seen; None: there is none."""
    return max(map(int, as_mapping(memory.facts.get("losses"))), default=None)


def _read_model(models: Folder, name: str) -> Params:
    """The parameters in a file. Raises: Malformed: it is damaged."""
    return from_bytes(unseal_parts(models.map(name))).tensors


def list_rounds(models: Folder) -> list[int]:
    """The rounds whose models are there."""
    return sorted(int(name) for name in models.names() if not name.startswith(AVERAGE))


def list_averages(models: Folder) -> list[int]:
    """The rounds after which there is an average."""
    return sorted(int(name.removeprefix(AVERAGE)) for name in models.names() if name.startswith(AVERAGE))


def prune_models(models: Folder, memories: Sequence[Memory], *, best: int | None, newest: int) -> None:
    """Remove the models that no checkpoint can need any more. Call it after the commit, and not for a replay.

    memories: the one just committed, and the one of the last merged round, which is used again if the reply is lost.
    """
    needed_rounds: set[int | None] = {newest, newest - 1, best}
    for memory in memories:
        losses = as_mapping(memory.facts.get("losses"))
        needed_rounds.add(best_round(losses))
        if best is not None:  # a site that was not asked in the best round uses its last model before that round
            needed_rounds.add(max((int(name) for name in losses if int(name) <= best), default=None))
    needed_averages = {newest, *map(last_scored_round, memories)}  # the next one is made of that of the memory used
    for name in models.names():
        number, is_average = int(name.removeprefix(AVERAGE)), name.startswith(AVERAGE)
        if number not in needed_averages if is_average else number < newest and number not in needed_rounds:
            models.remove(name)


def load_checkpoint(models: Folder, memory: Memory, which: Checkpoint, *, best: int | None) -> tuple[int, Params]:
    """The round and the parameters of a checkpoint at this site.

    A site without validation patients has no `local` best, and a run without any has no `global` one: then it is the
    latest. So is the `average` of a method with a single round, of which no average is kept.

    Raises:
        KeyError: this site lacks the model (it never finished a round, or a file is gone).
        Malformed: the model's file is damaged.
    """
    losses = as_mapping(memory.facts.get("losses"))
    rounds = sorted(int(name) for name in losses)
    last = max(rounds, default=0)
    rounds += [number for number in list_rounds(models) if number > last]  # their losses were lost with a memory
    if which == "average" and (averages := list_averages(models)):
        if averages[-1] != rounds[-1]:
            raise KeyError(f"the average up to round {rounds[-1]} is gone")
        return rounds[-1], _read_model(models, f"{AVERAGE}{rounds[-1]}")
    if not rounds:
        raise KeyError(f"no model for checkpoint {which!r}: this site finished no round")
    chosen = rounds[-1]
    if which == "local":
        chosen = best_round(losses) or chosen
    if which == "global" and best is not None:
        chosen = max((r for r in rounds if r <= best), default=chosen)
    if not models.has(f"{chosen}"):
        raise KeyError(f"the model of round {chosen}, checkpoint {which!r}, is gone")
    return chosen, _read_model(models, f"{chosen}")


def best_round(losses: Mapping[str, Json]) -> int | None:
    """The round with the lowest finite loss (the earlier of two equal ones), or None."""
    finite = [(float(str(loss)), int(name)) for name, loss in losses.items() if loss is not None]
    return min(finite)[1] if finite else None


def _finite_notes(notes: Json) -> dict[str, Json]:
    """Notes with null for values that are not finite: a diverged note must not invalidate a good reply."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in as_mapping(notes).items()
    }


def _move_tensors(device: torch.device, tensors: Params) -> Params:
    """The tensors on a device; they return to the CPU when they are serialized."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}
