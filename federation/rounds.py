"""The coordinator's side of training: in each round, ask the sites, check and merge replies, and save the state.

A run that was stopped resumes from the last saved round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar

from federation.algorithm import Algorithm, State
from federation.buffering import (
    Merge,
    can_merge_late,
    count_updates,
    find_buffer_problem,
    find_oldest,
    plan_merges,
    rebase_stale,
)
from federation.engine import Eager, Engine
from federation.merging import MEAN, Rule
from federation.notices import Update, add_updates, measure_updates, use_released_counts
from federation.outcome import Outcome, load_outcome, move_to_file, save_outcome
from federation.participant import best_round
from federation.questions import (
    add_sent_bytes,
    ask_training,
    begin_work,
    choose_sites,
    keep_states,
    wrap_message,
    write_questions,
)
from federation.rehearsal import Forms
from federation.summing import EVERYBODY, KEY, has_words, masked_form, reveal_sum
from federation.upload import Int8, unpack_replies
from federation.verdict import MALFORMED, WRONG, find_introduction_problem, find_reply_problem
from privacy.folder import Folder
from privacy.message import Call, Json, Message, Params, as_mapping
from privacy.pickled import reduce_error
from privacy.release.gate import BUDGET
from privacy.settings_error import Problem, refuse, unmet

TRIES = 3  # attempts at the introduction and the finish, which every site must answer
HIDDEN_BUFFER = (
    "hospitals that begin with different models are merged by how late each one is, and in a sum nobody sees whose "
    "update is late; say secure_sum: false, or leave schedule.buffer out"
)
"""Why replies that are hidden in sums are not merged late."""
SHORTEST_S = 0.01  # of deadlines; nobody answers sooner


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many rounds, and which sites take part.

    participation: share of the sites that is asked each round. quorum: share of the asked sites that must send a valid
    reply; a site whose privacy budget is spent retires and does not count.
    deadline_s: a reply that takes longer is lost; None = no limit. patience: training ends early once the validation
    loss over all sites was no lower for so many rounds; None = never, as where no losses leave.
    buffer: merge as soon as so many sites have answered (`federation.buffering`); None = all that were asked. rounds
    are then merges. durations: site -> how long a round of work takes there, in any unit; 1 where it is not said.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    rounds: int
    participation: float = 1.0
    quorum: float = 1.0
    deadline_s: float | None = None
    patience: int | None = None
    buffer: int | None = None
    durations: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                rounds=(self.rounds >= 1, ">= 1"),
                participation=(0 < self.participation <= 1, "in (0, 1]"),
                quorum=(0 < self.quorum <= 1, "in (0, 1]"),
                deadline_s=(self.deadline_s is None or self.deadline_s >= SHORTEST_S, f">= {SHORTEST_S} or null"),
                patience=(self.patience is None or self.patience >= 1, ">= 1 or null"),
                buffer=(self.buffer is None or self.buffer >= 1, ">= 1 or null"),
            )
            + self._buffer_problems()
        )

    def _buffer_problems(self) -> list[Problem]:
        """Problems of durations, and of settings that buffered merging leaves without a meaning."""
        problems = [
            Problem(("durations", site), f"must be > 0 and finite, found {duration}")
            for site, duration in self.durations.items()
            if not 0 < duration < math.inf
        ]
        if self.buffer is None:
            text = "they say who is waited for in buffered merging, and buffer is missing; say how many, or remove them"
            return problems + ([Problem(("durations",), text)] if self.durations else [])
        if self.participation < 1:
            text = f"{self.participation:g}, and with buffer those who have answered are merged; say 1"
            problems.append(Problem(("participation",), text))
        if self.patience is not None:
            text = (
                f"{self.patience}, and with buffer each model is scored by the hospitals that begin with it alone, so "
                "that rounds cannot be compared; remove it"
            )
            problems.append(Problem(("patience",), text))
        return problems

    def plan(self, sites: Sequence[str]) -> tuple[Merge, ...] | None:
        """The merges of a run with these sites; None: each waits for all that were asked."""
        return None if self.buffer is None else plan_merges(sites, self.durations, self.buffer, self.rounds)

    def count_updates(self, sites: Sequence[str]) -> dict[str, int]:
        """Site -> in how many rounds it trains at most, of these sites."""
        merges = self.plan(sites)
        updates = dict.fromkeys(sites, self.rounds) if merges is None else count_updates(merges)
        return {site: updates[site] for site in sites}

    def count_asked(self, sites: int, fewest: int = 1) -> int:
        """How many of so many sites are asked in a round. fewest: that a rule of merging needs."""
        return min(sites, max(fewest, round(self.participation * sites)))

    def count_needed(self, asked: int) -> int:
        """How many valid replies a round needs of so many asked sites."""
        return math.ceil(self.quorum * asked - 1e-9)

    def is_over(self, outcome: Outcome, rule: Rule = MEAN) -> bool:
        """Whether the validation loss was no lower for as many rounds as patience allows. Rounds that cannot be
        compared do not count: else whoever stays silent would end training for all.
        """
        if self.patience is None or outcome.best is None:
            return False
        later = [name for name in comparable_totals(outcome.losses, outcome.totals, rule) if int(name) > outcome.best]
        return len(later) >= self.patience


def method_schedule(algorithm: Algorithm, schedule: Schedule) -> Schedule:
    """The schedule of one method: one that declares an attribute `rounds` has so many, with all sites in each. One
    whose updates cannot be merged late, as of a method that sends none, waits for everybody.
    """
    rounds: int | None = getattr(algorithm, "rounds", None)
    if rounds is not None:
        return replace(schedule, rounds=rounds, participation=1.0, buffer=None, durations={})
    is_kept = schedule.buffer is None or can_merge_late(algorithm)
    return schedule if is_kept else replace(schedule, buffer=None, durations={})


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How far the coordinator trusts single replies. rule: how they are merged. counts: site -> split -> the examples
    that the site released; they take the place of numbers in replies, which could be any. secure_sum: the openings ask
    for hidden replies: only their sum can be read, if every asked site is in it. upload: they ask for packed ones.
    """

    rule: Rule = MEAN
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    secure_sum: bool = False
    upload: Int8 | None = None


NO_RULE = Trust()


class QuorumLost(RuntimeError):
    """Too few sites sent a valid reply. The last complete round is saved; the same command resumes from there."""

    def __init__(self, run: str, round_: int, missing: Mapping[str, str]) -> None:
        reasons = ", ".join(f"{site}: {code}" for site, code in sorted(missing.items()))
        super().__init__(f"{run}, round {round_}: too few sites answered ({reasons})")
        self.missing = dict(missing)

    __reduce__ = reduce_error


def conduct_training(
    engine: Engine,
    algorithm: Algorithm,
    *,
    run: str,
    initial: Params,
    opening: Mapping[str, Message],
    forms: Forms,
    schedule: Schedule,
    seed: int,
    folder: Folder,
    between: Callable[[Outcome], None],
    trust: Trust = NO_RULE,
) -> Outcome:
    """Train: introduce, the rounds of `method_schedule`, finish. Resumes from `folder` if it holds this run's state.

    Args:
        opening: site -> message sent with the introduction (settings of this run).
        forms: an introduction and a reply of this algorithm, from a rehearsal; one of another form is malformed.
        between: called after each round, once the state is saved; it may raise to stop the run safely.

    Raises:
        QuorumLost: too few valid replies; the last complete round is saved.
        ValueError: merging is buffered, and the method or hidden replies do not allow it.
    """
    check_buffer(algorithm, forms.reply, schedule, trust)
    schedule = method_schedule(algorithm, schedule)
    merges = schedule.plan(engine.sites)
    outcome = load_outcome(folder, run)
    if outcome is None:
        outcome = _ask_introductions(engine, algorithm, run, initial, opening, forms.introduction, trust)
        save_outcome(folder, run, outcome)
        outcome = move_to_file(folder, outcome)
    while outcome.round < schedule.rounds:
        between(outcome)
        outcome = _run_round(engine, algorithm, run, outcome, forms.reply, schedule, seed, trust, merges)
        if schedule.is_over(outcome, trust.rule):  # the current model is final, as when all sites have retired
            outcome = replace(outcome, round=schedule.rounds)
        save_outcome(folder, run, outcome, since=find_oldest(merges, outcome.round))
        outcome = move_to_file(folder, outcome)
    between(outcome)
    if outcome.round == schedule.rounds:
        outcome = finish_training(engine, algorithm, run, outcome, trust=trust)
        save_outcome(folder, run, outcome)
    return outcome


def check_buffer(algorithm: Algorithm, form: Message, schedule: Schedule, trust: Trust = NO_RULE) -> None:
    """Check that a method's replies can be merged late, if the schedule asks for that. form: of a reply.

    Raises:
        ValueError: they cannot.
    """
    if schedule.buffer is None:
        return
    if problem := find_buffer_problem(algorithm, form):
        raise ValueError(problem)
    if trust.secure_sum and form.tensors:
        raise ValueError(HIDDEN_BUFFER)


def _ask_introductions(
    engine: Engine,
    algorithm: Algorithm,
    run: str,
    initial: Params,
    opening: Mapping[str, Message],
    form: Message,
    trust: Trust = NO_RULE,
) -> Outcome:
    """Ask every site for its introduction, since the initial state depends on all of them; and for the public key of a
    secure sum.
    """

    def find_problem(reply: Message) -> str | None:
        lacks_key = trust.secure_sum and not isinstance(reply.facts.get(KEY), str)
        return MALFORMED if lacks_key else find_introduction_problem(reply, form)

    call = Call(run, 0, "introduce", {})
    replies, missing = ask_all(engine, call, opening, find_problem)
    if missing:
        raise QuorumLost(run, 0, missing)
    introductions = use_released_counts(_unwrap_messages(replies), trust.counts)
    try:
        state = algorithm.start(initial, introductions)
    except Exception:
        spoilt = _find_spoilt_sites(lambda parts: algorithm.start(initial, parts), introductions)
        if not spoilt:
            raise
        raise QuorumLost(run, 0, spoilt) from None
    keys = {site: str(reply.facts[KEY]) for site, reply in replies.items()} if trust.secure_sum else {}
    return Outcome(state, {}, {}, {}, keys=keys)


def _run_round(
    engine: Engine,
    algorithm: Algorithm,
    run: str,
    last: Outcome,
    template: Message,
    schedule: Schedule,
    seed: int,
    trust: Trust = NO_RULE,
    merges: Sequence[Merge] | None = None,
) -> Outcome:
    number = last.round + 1
    active = tuple(site for site in engine.sites if site not in last.retired_sites)
    too_few = len(active) < trust.rule.fewest
    if too_few and not last.merged:
        raise QuorumLost(run, number, dict.fromkeys(last.retired_sites or engine.sites, BUDGET))
    if too_few:  # so many sites have retired that the current model is final
        return replace(last, round=schedule.rounds)
    began = choose_sites(merges, active, number, schedule.count_asked(len(active), trust.rule.fewest), seed)
    hidden = bool(last.keys) and has_words(template)
    keys = {site: last.keys[site] for site in began} if hidden else {}
    now = write_questions(algorithm, run, last, dict.fromkeys(began, number), keys)
    messages = now if merges is None else write_questions(algorithm, run, last, began, keys)
    if merges is not None and isinstance(engine, Eager):
        begin_work(engine, algorithm, run, last, merges, active)
    replies, missing = ask_training(engine, run, last.merged, began, messages, schedule.deadline_s)
    if trust.upload is not None:
        replies, unread = unpack_replies(replies, messages, template)
        missing = {**missing, **unread}
    form = masked_form(template) if hidden else template
    codes = {site: find_reply_problem(reply, form) for site, reply in replies.items()}
    good = {site: reply for site, reply in sorted(replies.items()) if codes[site] is None}
    is_complete = good.keys() == keys.keys() if hidden else len(good) >= trust.rule.fewest
    state, spoilt, updates = last.state, dict[str, str](), dict[str, Update]()
    if is_complete and hidden:
        state, spoilt = _merge_sum(algorithm, last.state, good, template)
    elif is_complete:
        parts = rebase_stale(use_released_counts(_unwrap_messages(good), trust.counts), began, messages, now, number)
        state, spoilt = _merge_replies(algorithm, last.state, parts, now, trust.rule)
        updates = measure_updates(good, messages, trust.counts)
    codes |= spoilt
    good = {site: reply for site, reply in sorted(replies.items()) if codes[site] is None}
    lost = {**missing, **{site: why for site, why in codes.items() if why is not None}}
    gone = tuple((number, site, code) for site, code in sorted(lost.items()))
    going_on = [site for site in began if lost.get(site) != BUDGET]
    if len(good) < schedule.count_needed(len(going_on)):
        raise QuorumLost(run, number, lost)
    received = add_sent_bytes(last.received, messages)
    if not good and merges is None:  # all asked sites retired: repeat the round with others
        return replace(last, missing=last.missing + gone, received=received)
    scored = {site: start - 1 for site, start in began.items()}
    is_common = merges is None or began == dict.fromkeys(active, number)
    seen = _add_losses(last, good, scored, trust, is_common=is_common)
    is_complete = is_complete and (hidden or len(good) >= trust.rule.fewest)  # without those that could not be merged
    # Masks of an incomplete sum do not cancel, and a rule needs its number of replies. The round is lost, and the next
    # one asks for new replies.
    merged = {**last.merged, **({site: began[site] for site in good} if is_complete else {})}
    return replace(
        seen,
        state=state,
        merged=merged,
        missing=last.missing + gone,
        round=number,
        received=received,
        updates=add_updates(last.updates, updates, number),
        earlier=keep_states(last, merges, number),
    )


def _unwrap_messages(replies: Mapping[str, Message]) -> dict[str, Message]:
    """What the method said in each reply."""
    return {site: Message(r.tensors, as_mapping(r.facts["algorithm"])) for site, r in replies.items()}


def _merge_sum(
    algorithm: Algorithm, state: State, replies: Mapping[str, Message], form: Message
) -> tuple[State, dict[str, str]]:
    """The state with the sum of hidden replies; and, where the method cannot take it, all sites with their code: nobody
    can tell whose reply spoils a sum.
    """
    try:
        reply = reveal_sum(replies, form)
        wrapped = Message(reply.tensors, {"algorithm": dict(reply.facts), "loss": None, "n": 0})
        if (code := find_reply_problem(wrapped, form)) is None:
            return algorithm.merge(state, {EVERYBODY: reply}), {}
    except ValueError:
        code = MALFORMED
    return state, dict.fromkeys(replies, code)


def _merge_replies(
    algorithm: Algorithm, state: State, parts: Mapping[str, Message], sent: Mapping[str, Message], rule: Rule
) -> tuple[State, dict[str, str]]:
    """The state with these replies; and the sites whose replies the method cannot take, with their code.

    A reply of the right form may still hold what the method cannot compute with. Then each is merged alone, and those
    that fail are left out. If none fails alone the method itself does, and the error is raised.
    """
    if not parts:
        return state, {}
    try:
        return algorithm.merge(state, rule.combine(parts, sent)), {}
    except Exception:
        spoilt = _find_spoilt_sites(lambda replies: algorithm.merge(state, replies), parts)
        if not spoilt:
            raise
    good = {site: reply for site, reply in parts.items() if site not in spoilt}
    enough = len(good) >= rule.fewest
    return (algorithm.merge(state, rule.combine(good, sent)) if enough else state), spoilt


def _find_spoilt_sites(work: Callable[[Mapping[str, Message]], object], parts: Mapping[str, Message]) -> dict[str, str]:
    """The sites on whose message alone the work fails, with the code `malformed`; empty if it fails on all."""
    codes = {}
    for site, message in parts.items():
        try:
            work({site: message})
        except Exception:
            codes[site] = MALFORMED
    return codes if len(codes) < len(parts) else {}


def finish_training(
    engine: Engine,
    algorithm: Algorithm,
    run: str,
    last: Outcome,
    *,
    scored: bool = True,
    trust: Trust = NO_RULE,
) -> Outcome:
    """Send the final model to every site. All must receive it; a repeated request costs a site no new work.
    A site that answered has it: if its score is malformed, only that is left out.

    scored: whether sites score it on their validation patients, which a private run pays for.
    """
    number = last.round + 1
    call = Call(run, number, "finish", last.merged)
    messages = {site: wrap_message(algorithm.send(last.state, site, call), last.best) for site in engine.sites}
    if not scored:
        messages = {
            site: Message(message.tensors, {**message.facts, "score": False}) for site, message in messages.items()
        }
    empty = Message({}, {"algorithm": {}})
    replies, missing = ask_all(engine, call, messages, lambda reply: find_reply_problem(reply, empty))
    if lost := {site: code for site, code in missing.items() if code not in WRONG}:
        raise QuorumLost(run, number, lost)
    gone = tuple((number, site, code) for site, code in sorted(missing.items()))
    seen = _add_losses(last, replies, dict.fromkeys(replies, number - 1), trust)
    return replace(seen, missing=last.missing + gone, round=number, received=add_sent_bytes(last.received, messages))


def ask_all(
    engine: Engine, call: Call, messages: Mapping[str, Message], check: Callable[[Message], str | None]
) -> tuple[dict[str, Message], dict[str, str]]:
    """Ask up to TRIES times, each time the sites without a valid reply. check: the code of a reply, None = valid."""
    replies: dict[str, Message] = {}
    missing: dict[str, str] = {}
    for _ in range(TRIES):
        answers = engine.ask(call, {site: m for site, m in messages.items() if site not in replies})
        missing = dict(answers.missing)
        for site, reply in answers.replies.items():
            code = check(reply)
            if code is None:
                replies[site] = reply
            else:
                missing[site] = code
        if not missing:
            break
    return dict(sorted(replies.items())), missing


def _add_losses(
    last: Outcome, replies: Mapping[str, Message], scored: Mapping[str, int], trust: Trust, *, is_common: bool = True
) -> Outcome:
    """The outcome with the validation losses that the sites measured. scored: site -> the round after which it got the
    model. is_common: whether that was the same round for all; only then is there a total.
    """
    losses = {site: dict(series) for site, series in last.losses.items()}
    sizes = {
        site: trust.counts.get(site, {}).get("validation", n)
        for site, r in replies.items()
        if isinstance(n := r.facts.get("n"), int) and n > 0
    }
    for site in sizes:
        losses.setdefault(site, {})[str(scored[site])] = replies[site].facts["loss"]
    values = {site: float(str(replies[site].facts["loss"])) for site in sizes}
    total = sum(n * values[site] for site, n in sizes.items()) / max(1, sum(sizes.values()))
    if trust.rule.name != MEAN.name and values:  # one false loss could choose the round for everybody
        total = median(values.values())
    totals = dict(last.totals)
    if is_common and sizes:
        totals[str(scored[next(iter(sizes))])] = total
    comparable = comparable_totals(losses, totals, trust.rule)
    return replace(last, losses=losses, totals=totals, best=best_round(comparable))


def comparable_totals(
    losses: Mapping[str, Mapping[str, Json]], totals: Mapping[str, Json], rule: Rule = MEAN
) -> dict[str, Json]:
    """Round -> total, of the rounds that can be compared.

    By `mean` they are those scored by the same sites: a round scored by an easy site alone would look best. A median
    over more than half of the sites is not moved so, and a site that scores a single round must not choose it.
    """
    needed = len(losses) if rule.name == MEAN.name else len(losses) // 2 + 1
    return {name: loss for name, loss in totals.items() if sum(name in series for series in losses.values()) >= needed}
