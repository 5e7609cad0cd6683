"""The coordinator's state and records of a run, saved so that it resumes from its last complete round.

The records of a round are final once the next round is complete. So they are written once, `CHUNK` rounds to a file,
and the file that changes each round contains only the state and the last few rounds: a save in round 300 takes no
longer than in round 30.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from federation.algorithm import State
from federation.parameters import section
from privacy.folder import Folder
from privacy.formats import check_format
from privacy.message import (
    CHECKSUM,
    LARGE,
    Json,
    Malformed,
    Message,
    add_checksum,
    as_list,
    as_mapping,
    from_bytes,
    lay_out_bytes,
    seal_parts,
    to_bytes,
    unseal_parts,
)
from privacy.release.gate import BUDGET

FORMAT = 1
STATE = "state"  # the file that a run resumes from
EARLIER = "earlier"
CHUNK = 32  # rounds whose records lie in one file


@dataclass(frozen=True)
class Outcome:
    """The coordinator's state and records of a run.

    merged: site -> last round whose reply was merged. losses: site -> round -> validation loss of the model after that
    round. totals: round -> example-weighted mean of the losses. missing: (round, site, code) of lost replies.
    received: site -> bytes of tensors and facts sent to it. best: the round with the lowest total among the rounds
    that every site with validation patients scored, or None. keys: site -> public key, where replies are hidden in
    sums (`privacy.secure_sum`). updates: site -> round -> what was measured of its update (`federation.notices`).
    earlier: round -> the state with which sites began in it that are still at work (`federation.buffering`).
    """

    state: State
    merged: Mapping[str, int]
    losses: Mapping[str, Mapping[str, Json]]
    totals: Mapping[str, Json]
    missing: tuple[tuple[int, str, str], ...] = ()
    best: int | None = None
    round: int = 0
    received: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    earlier: Mapping[int, State] = field(default_factory=dict)

    @property
    def retired_sites(self) -> frozenset[str]:
        """Sites whose privacy budget is spent: they do not train any more, and receive the last model."""
        return frozenset(site for _, site, code in self.missing if code == BUDGET)


def save_outcome(
    folder: Folder, run: str, outcome: Outcome, *, rewrite_all: bool = False, since: int | None = None
) -> None:
    """Write the files that `load_outcome` reads. rewrite_all: write files of earlier rounds again, whose records
    changed; since: those from this round on.
    """
    since = outcome.round if since is None else since
    final = outcome.round - outcome.round % CHUNK
    for first in range(0, final, CHUNK):
        last = outcome.round == first + CHUNK  # its file may be from before a power failure, with other replies
        late = since < first + CHUNK
        if rewrite_all or last or late or not folder.has(_chunk_name(run, first)):
            folder.write(
                _chunk_name(run, first),
                seal_parts(to_bytes(Message({}, _round_records(outcome, first, first + CHUNK)))),
            )
    facts: dict[str, Json] = {
        "format": FORMAT,
        "run": run,
        "round": outcome.round,
        "chunks": final // CHUNK,
        "merged": dict(outcome.merged),
        **_round_records(outcome, final, outcome.round + 1),
        "totals": dict(outcome.totals),
        "best": outcome.best,
        "received": dict(outcome.received),
        **({"keys": dict(outcome.keys)} if outcome.keys else {}),
        "state": dict(outcome.state.facts),
        **({EARLIER: {str(r): dict(state.facts) for r, state in outcome.earlier.items()}} if outcome.earlier else {}),
    }
    earlier = {
        f"{EARLIER}/{r}/{name}": value for r, state in outcome.earlier.items() for name, value in state.tensors.items()
    }
    folder.write_parts(STATE, add_checksum(lay_out_bytes(Message({**outcome.state.tensors, **earlier}, facts))))


def load_outcome(folder: Folder, run: str) -> Outcome | None:
    """The saved outcome of this run; None if nothing is saved, or only another run.

    Raises:
        Malformed: a file is corrupt, or records of earlier rounds are missing.
    """
    if not folder.has(STATE):
        return None
    saved = from_bytes(unseal_parts(folder.map(STATE)))
    facts = saved.facts
    check_format(facts.get("format"), FORMAT, f"the state of {run}")
    if facts["run"] != run:
        return None
    names = [_chunk_name(run, CHUNK * number) for number in range(int(str(facts.get("chunks", 0))))]
    if gone := [name for name in names if not folder.has(name)]:
        raise Malformed(f"records of earlier rounds are missing: {', '.join(gone)}; restore them, or train anew")
    records = [*(from_bytes(unseal_parts(folder.read(name))).facts for name in names), facts]
    losses, updates = _join_rounds(records, "losses"), _join_rounds(records, "updates")
    best, earlier = facts["best"], as_mapping(facts.get(EARLIER))
    prefixes = {name: f"{EARLIER}/{name}/" for name in earlier}
    current = {n: t for n, t in saved.tensors.items() if not n.startswith(tuple(prefixes.values()))}
    return Outcome(
        state=Message(current, as_mapping(facts["state"])),
        merged={site: int(str(r)) for site, r in as_mapping(facts["merged"]).items()},
        losses=losses,
        totals=as_mapping(facts["totals"]),
        missing=tuple(
            (int(str(m[0])), str(m[1]), str(m[2]))
            for record in records
            for m in as_list(record["missing"])
            if isinstance(m, list)
        ),
        best=best if isinstance(best, int) else None,
        round=int(str(facts["round"])),
        received={site: int(str(size)) for site, size in as_mapping(facts.get("received")).items()},
        keys={site: str(key) for site, key in as_mapping(facts.get("keys")).items()},
        updates=updates,
        earlier={
            int(name): Message(section(saved.tensors, f"{EARLIER}/{name}"), as_mapping(facts_of_state))
            for name, facts_of_state in earlier.items()
        },
    )


def move_to_file(folder: Folder, outcome: Outcome) -> Outcome:
    """A saved outcome whose states, if they are large, lie in the file that was saved, and no longer in memory."""
    states = {f"{EARLIER}/{r}/": state for r, state in outcome.earlier.items()} | {"": outcome.state}
    if sum(tensor.nbytes for state in states.values() for tensor in state.tensors.values()) <= LARGE:
        return outcome
    saved = from_bytes(folder.map(STATE)[CHECKSUM:]).tensors
    moved = {
        prefix: Message({name: saved[f"{prefix}{name}"] for name in state.tensors}, state.facts)
        for prefix, state in states.items()
    }
    earlier = {r: moved[f"{EARLIER}/{r}/"] for r in outcome.earlier}
    return replace(outcome, state=moved[""], earlier=earlier)


def _join_rounds(records: Sequence[Mapping[str, Json]], name: str) -> dict[str, dict[str, Json]]:
    """Site -> round -> one kind of record, from those of all rounds."""
    joined: dict[str, dict[str, Json]] = {}
    for record in records:
        for site, series in as_mapping(record.get(name)).items():
            joined.setdefault(site, {}).update(as_mapping(series))
    return joined


def _round_records(outcome: Outcome, first: int, end: int) -> dict[str, Json]:
    """Losses, measured updates and lost replies of the rounds from `first` to before `end`."""
    names = [str(number) for number in range(first, end)]

    def select_rounds(series_by_site: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
        return {
            site: {name: series[name] for name in names if name in series} for site, series in series_by_site.items()
        }

    return {
        "losses": select_rounds(outcome.losses),
        **({"updates": select_rounds(outcome.updates)} if outcome.updates else {}),
        "missing": [list(item) for item in outcome.missing if first <= item[0] < end],
    }


def _chunk_name(run: str, first: int) -> str:
    """The name of the file with the records of `CHUNK` rounds of one run."""
    return f"rounds-{first}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"
