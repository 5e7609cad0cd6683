"""A run's records come back as they were, whenever it stopped; and a save costs the same in late rounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consilium.testing.testbed import MemoryFolder
from federation.outcome import CHUNK, STATE, Outcome, load_outcome, save_outcome
from privacy.message import Json, Malformed, Message


def after(rounds: int, sites: int, lost: frozenset[tuple[int, int]] = frozenset()) -> Outcome:
    """A run of so many complete rounds; lost: (round, site) of replies that did not come."""
    names = [f"s{number}" for number in range(sites)]
    losses: dict[str, dict[str, Json]] = {
        name: {str(r): r + i / 8 for r in range(rounds) if (r, i) not in lost} for i, name in enumerate(names)
    }
    return Outcome(
        state=Message({"model/w": torch.full((3,), float(rounds))}, {"round": rounds}),
        merged=dict.fromkeys(names, rounds),
        losses={name: series for name, series in losses.items() if series},
        totals={str(r): r / 2 for r in range(rounds)},
        missing=tuple((r, f"s{i}", "deadline") for r, i in sorted(lost) if r <= rounds),
        best=rounds // 2 if rounds else None,
        round=rounds,
        received=dict.fromkeys(names, 10 * rounds),
    )


def equal(one: Outcome | None, other: Outcome) -> bool:
    assert one is not None
    same = {n: torch.equal(t, other.state.tensors[n]) for n, t in one.state.tensors.items()}
    plain = [
        (o.state.facts, o.merged, o.losses, o.totals, o.missing, o.best, o.round, o.received) for o in (one, other)
    ]
    return all(same.values()) and plain[0] == plain[1]


LOST = st.frozensets(st.tuples(st.integers(0, 100), st.integers(0, 4)), max_size=30)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3 * CHUNK + 1), st.integers(1, 5), LOST, st.data())
def test_it_comes_back_from_every_round_and_from_between_two_files(
    rounds: int, sites: int, lost: frozenset[tuple[int, int]], data: st.DataObject
) -> None:
    folder = MemoryFolder()
    stopped = data.draw(st.integers(0, rounds))
    for number in range(rounds + 1):
        now = after(number, sites, lost)
        kept = dict(folder.files)
        save_outcome(folder, "law", now)
        if number == stopped:  # power fails after the records of finished rounds, before the state
            folder.files[STATE] = kept.get(STATE, folder.files[STATE])
            expected = after(number - 1 if STATE in kept else number, sites, lost)
            assert equal(load_outcome(folder, "law"), expected)
            save_outcome(folder, "law", now)
        assert equal(load_outcome(folder, "law"), now)
    assert load_outcome(folder, "another") is None


def test_a_round_that_is_asked_again_after_a_power_failure_leaves_its_own_records() -> None:
    folder = MemoryFolder()
    save_outcome(folder, "law", after(CHUNK - 1, 2))
    state = folder.files[STATE]
    save_outcome(folder, "law", after(CHUNK, 2, frozenset({(CHUNK - 1, 1)})))  # one hospital was late
    folder.files[STATE] = state
    save_outcome(folder, "law", after(CHUNK, 2))
    assert equal(load_outcome(folder, "law"), after(CHUNK, 2))


def test_late_saves_write_no_more_than_early_ones() -> None:
    folder = MemoryFolder()
    sizes = []
    for number in range(10 * CHUNK):
        save_outcome(folder, "law", after(number, 50))
        sizes.append(len(folder.files[STATE]))
    early, late = max(sizes[CHUNK : 2 * CHUNK]), max(sizes[-CHUNK:])
    assert late < 1.5 * early, (early, late)
    assert len(folder.files) == 10  # nine of finished rounds, and the state


def test_records_that_are_gone_are_told_and_never_half_a_history() -> None:
    folder = MemoryFolder()
    for number in range(2 * CHUNK + 2):
        save_outcome(folder, "law", after(number, 2))
    (name, *_) = sorted(name for name in folder.files if name != STATE)
    folder.remove(name)
    with pytest.raises(Malformed, match=name):
        load_outcome(folder, "law")
    save_outcome(folder, "law", after(2 * CHUNK + 2, 2))  # who has the records writes them again
    assert equal(load_outcome(folder, "law"), after(2 * CHUNK + 2, 2))
