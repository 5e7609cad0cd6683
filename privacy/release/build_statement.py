"""Build a hospital's privacy statement from its ledger: which mechanisms ran, and their ε alone and together."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from privacy.dp.events import (
    DECLARATIONS,
    NON_PRIVATE,
    Composed,
    Declared,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    Nothing,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
    SharedGaussian,
    UnknownEvent,
    assume_colluding,
    list_leaves,
)
from privacy.message import Json, whole_of
from privacy.release import meaning as words
from privacy.release.gate import lacks_noise
from privacy.release.ledger import charged_lines
from privacy.release.meaning import round_down, round_up
from privacy.release.statement import (
    Audit,
    Budget,
    Declaration,
    Details,
    Paragraph,
    Released,
    Row,
    Run,
    SplitLoss,
    Statement,
    Unprotected,
)

UNKNOWN = "none: the ledger has an event of an unknown kind"
CODE = "a code instead of a reply"


@dataclass(frozen=True)
class _Line:
    """A line of the ledger. atoms: mechanisms that patients are charged for, with counts; none of a repeat."""

    said: Mapping[str, Json]
    run: str
    request: str
    atoms: tuple[tuple[Event, int], ...]
    refused: bool
    again: bool


_Tally: TypeAlias = tuple[tuple[Event, int], ...]
_Pricer: TypeAlias = Callable[[_Tally], tuple[float, str]]


def build_statement(
    lines: Iterable[Mapping[str, Json]],
    *,
    site: str,
    delta: float,
    budget: tuple[float, float] | None = None,
    caps: tuple[float, float] | None = None,
    details: Mapping[str, Details] | None = None,
    contents: Mapping[str, str] | None = None,
    audit: Audit | None = None,
    pretraining: str = "none",
    unit: str = "patient",
    packages: str = "",
    not_covered: Iterable[str] = (),
    colluding: int | None = None,
    signed_keys: bool = False,
) -> Statement:
    """The privacy statement of a hospital's ledger.

    Args:
        lines: of the ledger, as `ledger.lines` reads them. An event that is not known counts as non-private.
        delta: at which every ε is computed. budget: the policy's (ε, δ).
        caps: the most ε of one release and of one run, by the policy.
        details: by run. contents: what a reply to each request holds. pretraining: the weights that models started
            from, and their licence; "none" = random weights. packages: whose code took part besides ours, in words.
        not_covered: what no ε covers in these runs, in addition to what no ε ever covers.
        colluding: how many hospitals may work together with the coordinator, where they share noise in secure sums;
            None = all others, so that a hospital's own noise is all that counts. signed_keys: whether the hospital
            verifies the keys of the others in secure sums.

    Raises:
        ValueError: a δ is not between 0 and 1, or the budget's ε is negative.
    """
    _check_arguments(delta, budget)
    everything = list(lines)
    ledger_lines = list(_list_lines(everything))
    price, total, about = _make_pricer(delta, colluding=colluding), _tally_lines(ledger_lines), contents or {}
    (epsilon, accountant), (noised, by) = price(total), price(_select_noised(total))
    replaced, _ = _make_pricer(delta, replaced=True, colluding=colluding)(_select_noised(total))
    dates = [str(line.said.get("time", "")) for line in ledger_lines] or [""]
    return Statement(
        site=site,
        unit=unit,
        adjacency=words.ADJACENCY.format(unit=unit),
        epsilon=epsilon,
        noised=noised,
        replaced=replaced,
        delta=delta,
        accountant=by if math.isinf(epsilon) and noised > 0 else accountant,
        meaning=words.describe_meaning(epsilon, delta, unit),
        legend=words.LEGEND.format(unit=unit),
        lines=len(everything),
        torn=len(everything) - len(ledger_lines),
        refused=sum(line.refused for line in ledger_lines),
        first=dates[0],
        last=dates[-1],
        budget=_build_budget(total, budget, caps or (None, None), colluding),
        runs=tuple(
            _build_run(
                run, [line for line in ledger_lines if line.run == run], price, (details or {}).get(run, Details())
            )
            for run in dict.fromkeys(line.run for line in ledger_lines)
        ),
        splits=_split_losses(_select_noised(total), delta, colluding),
        released=tuple(_list_released(ledger_lines, about)),
        unprotected=tuple(_list_unprotected(ledger_lines, about)),
        stated=tuple(_list_declarations(ledger_lines)),
        outside=(*(text.format(unit=unit) for text in words.OUTSIDE), *not_covered),
        paragraphs=(
            Paragraph("Composition", words.COMPOSITION.format(unit=unit)),
            Paragraph("Randomness", words.RANDOMNESS),
            Paragraph("Trust", _describe_trust(total, delta, colluding, signed_keys)),
            Paragraph("What models began with", words.SCRATCH if pretraining == "none" else pretraining),
            *((Paragraph("Code of other packages", packages),) if packages else ()),
        ),
        audit=audit,
    )


def _check_arguments(delta: float, budget: tuple[float, float] | None) -> None:
    """Raises: ValueError: a δ is not between 0 and 1, or the budget's ε is negative."""
    deltas = {"delta": delta, **({} if budget is None else {"the budget's delta": budget[1]})}
    wrong = [f"{name} must lie between 0 and 1, found {value}" for name, value in deltas.items() if not 0 < value < 1]
    if budget is not None and not budget[0] >= 0:
        wrong.append(f"the budget's epsilon must be >= 0, found {budget[0]}")
    if wrong:
        raise ValueError("; ".join(wrong))


def _list_lines(everything: Sequence[Mapping[str, Json]]) -> Iterator[_Line]:
    """All lines except torn ones. A line that the ledger does not charge for is a repeated reply."""
    events = {id(facts): event for facts, event in charged_lines(everything)}
    for facts in everything:
        if not facts.get("torn"):
            event = events.get(id(facts))
            atoms = () if event is None else tuple(_list_atoms(event))
            refused = facts.get("refused") is not None
            yield _Line(facts, str(facts.get("run", "")), str(facts.get("request", "")), atoms, refused, event is None)


def _list_atoms(event: Event, times: int = 1) -> Iterator[tuple[Event, int]]:
    """The mechanisms of an event with their counts, each inside the `Part` (split) that it was applied to."""
    if isinstance(event, Composed):
        for part in event.events:
            yield from _list_atoms(part, times)
    elif isinstance(event, SelfComposed):
        yield from _list_atoms(event.event, times * event.count) if event.count else ()
    elif isinstance(event, Part):
        for atom, count in _list_atoms(event.event, times):
            inner = atom.event if isinstance(atom, Part) else atom  # of nested parts the outer one is charged
            yield inner if isinstance(inner, NonPrivate | Declared) else Part(event.cut, event.split, inner), count
    elif not isinstance(event, Nothing):
        yield NON_PRIVATE if lacks_noise(event) else event, times


def _tally_lines(lines: Iterable[_Line]) -> _Tally:
    """The mechanisms of all lines, each with the sum of its counts."""
    tally: Counter[Event] = Counter()
    for line in lines:
        for atom, times in line.atoms:
            tally[atom] += times
    return tuple(tally.items())


def _select_noised(tally: _Tally) -> _Tally:
    """All mechanisms but the non-private ones."""
    return tuple((atom, times) for atom, times in tally if not isinstance(atom, NonPrivate))


def _make_pricer(delta: float, *, replaced: bool = False, colluding: int | None = None) -> _Pricer:
    """A cached function price(tally) -> (ε rounded up, the accountant's name). colluding: see `assume_colluding`."""
    from privacy.dp import (
        accounting,  # imported here because their libraries take seconds to import
        replacing,
    )

    cost = replacing.replaced_cost if replaced else accounting.compute_cost

    @functools.cache
    def price(tally: _Tally) -> tuple[float, str]:
        try:
            events = [assume_colluding(SelfComposed(atom, times), colluding) for atom, times in tally]
            loss_found = cost(events, delta)
        except UnknownEvent:  # it is in the ledger, so it happened: an unknown cost counts as infinite
            return math.inf, UNKNOWN
        return round_up(loss_found.epsilon), loss_found.accountant

    return price


def _build_run(run: str, lines: Sequence[_Line], price: _Pricer, details: Details) -> Run:
    """The part of the statement on one run. lines: of this run."""
    total = _tally_lines(lines)
    rows = [
        _build_row(request, atom, times, price)
        for request in dict.fromkeys(line.request for line in lines)
        for atom, times in _tally_lines(line for line in lines if line.request == request)
        if not isinstance(atom, NonPrivate | Declared)
    ]
    return Run(run, price(total)[0], price(_select_noised(total))[0], tuple(rows), details)


def _build_row(request: str, atom: Event, times: int, price: _Pricer) -> Row:
    """One mechanism of a request, priced alone."""
    split, event = (atom.split, atom.event) if isinstance(atom, Part) else ("", atom)
    mechanism, probability, noise = mechanism_of(event)
    return Row(request, split, mechanism, probability, noise, times, price(((atom, times),))[0])


def mechanism_of(event: Event) -> tuple[str, float, float | None]:
    """A mechanism on one sample: its description, q, and σ (None if it has none)."""
    if isinstance(event, PoissonSampled):
        mechanism, probability, noise = mechanism_of(event.event)
        return mechanism, event.probability * probability, noise
    if isinstance(event, SelfComposed):
        mechanism, probability, noise = mechanism_of(event.event)
        return f"{mechanism}, {event.count} times on one sample", probability, noise
    if isinstance(event, Composed):
        parts = [mechanism_of(part) for part in event.events]
        return ", then ".join(f"{text} (σ = {noise:g})" if noise else text for text, _, noise in parts), 1.0, None
    if isinstance(event, Pure):
        return f"pure, ε = {event.epsilon:g} each", 1.0, None
    if isinstance(event, SharedGaussian):
        text = f"Gaussian noise, shared: a part of that of {event.hospitals} hospitals"
        return text, 1.0, event.noise_multiplier
    if isinstance(event, Gaussian | Laplace):
        return f"{event.kind.capitalize()} noise", 1.0, event.noise_multiplier
    raise UnknownEvent(f"no mechanism: {event!r}")


def _describe_trust(total: _Tally, delta: float, colluding: int | None, signed_keys: bool) -> str:
    """Whom the guarantee trusts; where hospitals share noise, also what it is if all others work together."""
    sizes = [part.hospitals for atom, _ in total for part in list_leaves(atom) if isinstance(part, SharedGaussian)]
    if not sizes:
        return words.TRUST
    epsilon, _ = _make_pricer(delta)(_select_noised(total))
    return words.TRUST_IN_SUMS.format(
        hospitals=min(sizes),
        assumed=words.ALL_OTHERS if colluding is None else words.AT_MOST.format(colluding=colluding),
        alone=words.format_loss(epsilon),
        keys=words.SIGNED_KEYS if signed_keys else words.UNSIGNED_KEYS,
    )


def _split_losses(total: _Tally, delta: float, colluding: int | None) -> tuple[SplitLoss, ...]:
    """The ε of each split's patients; empty if an event is of an unknown kind."""
    from privacy.dp.accounting import by_split

    try:
        events = [assume_colluding(SelfComposed(atom, times), colluding) for atom, times in total]
        costs = by_split(events, delta)
    except UnknownEvent:
        return ()
    return tuple(SplitLoss(cut, split, round_up(split_cost.epsilon)) for (cut, split), split_cost in costs.items())


def _build_budget(
    total: _Tally,
    budget: tuple[float, float] | None,
    caps: tuple[float | None, float | None],
    colluding: int | None,
) -> Budget | None:
    """What is spent and what remains, both at the budget's δ; None without a budget."""
    if budget is None:
        return None
    epsilon, delta = budget
    spent, _ = _make_pricer(delta, colluding=colluding)(total)
    return Budget(epsilon, delta, spent, round_down(max(0.0, epsilon - spent)), *caps)


def _list_unprotected(lines: Sequence[_Line], contents: Mapping[str, str]) -> Iterator[Unprotected]:
    """Requests that had replies, or refusal codes, without any guarantee."""
    unnoised = [line for line in lines if any(isinstance(atom, NonPrivate) for atom, _ in line.atoms)]
    for request, refused in dict.fromkeys((line.request, line.refused) for line in unnoised):
        request_lines = [line for line in unnoised if (line.request, line.refused) == (request, refused)]
        content = CODE if refused else contents.get(request, "")
        yield Unprotected(request, content, sum(not line.again for line in request_lines), _sum_bytes(request_lines))


def _list_released(lines: Sequence[_Line], contents: Mapping[str, str]) -> Iterator[Released]:
    """Replies whose parts all have a guarantee; replies that hold only declared facts are left out."""
    bounded = [line for line in lines if not line.refused and _is_bounded(line)]
    for request in dict.fromkeys(line.request for line in bounded):
        request_lines = [line for line in bounded if line.request == request]
        again = sum(line.again for line in request_lines)
        yield Released(request, contents.get(request, ""), len(request_lines) - again, again, _sum_bytes(request_lines))


def _is_bounded(line: _Line) -> bool:
    """Whether a line has no non-private mechanism, and more than declared facts if it has any."""
    kinds = [type(atom) for atom, _ in line.atoms]
    return NonPrivate not in kinds and (not kinds or any(kind is not Declared for kind in kinds))


def _list_declarations(lines: Sequence[_Line]) -> Iterator[Declaration]:
    """Each kind of declared facts that left, with its requests."""
    for what in DECLARATIONS:
        declaring_lines = [line for line in lines if not line.again and Declared(what) in dict(line.atoms)]
        if declaring_lines:
            yield Declaration(
                what,
                words.DECLARED[what],
                len(declaring_lines),
                tuple(dict.fromkeys(line.request for line in declaring_lines)),
            )


def _sum_bytes(lines: Sequence[_Line]) -> int:
    """The bytes that left by these lines."""
    return sum(whole_of(line.said, "bytes", 0) for line in lines)
