"""What the lines of a ledger cost so far, as running totals: only lines that are new are read and added.

Lines are added in the ledger's order, so a total is what adding up all of them anew gives, to the last bit. Totals
belong to the chain of a ledger that this process checked, and are dropped with it: of a file that is not what was
checked, all lines are added up anew.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privacy.dp.accounting import Tally, tally_events
from privacy.dp.events import Event, assume_colluding
from privacy.message import Json
from privacy.release.ledger import charged_lines, find_checked_chain, read_lines, run_name

_ADDING = threading.Lock()


@dataclass
class Totals:
    """The charged events of the first lines of a ledger. counted: how many lines. left: replies in them, as
    `charged_lines` keeps them. total: of all runs. runs: of each run, by its name.
    """

    counted: int = 0
    left: set[tuple[str, ...]] = field(default_factory=set)
    total: Tally = field(default_factory=dict)
    runs: dict[str, Tally] = field(default_factory=dict)

    def add_lines(self, lines: Sequence[Mapping[str, Json]], colluding: int | None) -> None:
        """Add lines that follow those that are counted. colluding: as `add_up_ledger`.

        Raises:
            UnknownEvent: an event is in a place where no accountant can read it; then these totals are worth nothing.
        """
        every, by_run = list[Event](), defaultdict[str, list[Event]](list)
        for line, written in charged_lines(lines, self.left):
            event = assume_colluding(written, colluding)
            every.append(event)
            by_run[run_name(str(line.get("run")))].append(event)
        self.total = tally_events(every, self.total)
        self.runs |= {run: tally_events(events, self.runs.get(run)) for run, events in by_run.items()}
        self.counted += len(lines)


def add_up_ledger(ledger: Path, colluding: int | None) -> Totals:
    """The totals of a ledger, to be read only. colluding: how many hospitals may work together with the coordinator;
    None = all others (`assume_colluding`).

    Raises:
        UnknownEvent: an event is in a place where no accountant can read it.
    """
    chain = find_checked_chain(ledger)
    if chain is None:
        totals = Totals()
        totals.add_lines(tuple(read_lines(ledger)), colluding)
        return totals
    with _ADDING:
        totals = chain.totals.pop(colluding, None) or Totals()  # gone, if adding fails
        totals.add_lines(chain.lines[totals.counted :], colluding)
        chain.totals[colluding] = totals
    return totals
