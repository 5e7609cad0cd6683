"""python -m pipelines.ledger verify|sum|explain|restored LEDGER: check a hospital's ledger, and show its content.

    python -m pipelines.ledger verify LEDGER      intact, or every complaint with its line
    python -m pipelines.ledger sum LEDGER         released messages, and the privacy loss of the patients
    python -m pipelines.ledger explain LEDGER     every line in plain words
    python -m pipelines.ledger restored LEDGER --lost SHA256 --epsilon E
                                                  it was put back from an older copy: count what its lost lines cost

LEDGER is a ledger.jsonl or its folder. Only `restored` writes, one line; a run may use the ledger meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.loader.command_line import add_json_argument, announce, command_parser
from pipelines.runs.exits import Exit, end_process, print_error
from privacy.dp.events import NON_PRIVATE, Event, UnknownEvent, assume_colluding, describe_event
from privacy.message import Json, as_mapping
from privacy.release import ledger as ledgers
from privacy.release.chain import Damaged, is_torn
from privacy.release.event_words import describe_in_words
from privacy.release.meaning import format_loss
from privacy.release.witness import RESTORED, book_restored

if TYPE_CHECKING:
    from privacy.dp.accounting import Cost

_Line: TypeAlias = Mapping[str, Json]
_Charged: TypeAlias = Sequence[tuple[_Line, Event]]

PROG = "python -m pipelines.ledger"
FILE = "ledger.jsonl"
WITNESS = re.compile(r"(\d{1,12}):([0-9a-f]{64})")
REMEDY = (
    "A site with a damaged ledger releases nothing. Keep a copy for the investigation, restore ledger.jsonl "
    "and ledger.head from the backup, and tell the data protection officer which lines the backup lacks."
)


@dataclass(frozen=True)
class Sum:
    """The totals of some lines: released replies, their bytes, refusals, and the greatest cost of a patient."""

    name: str
    messages: int
    bytes: int
    refused: int
    cost: Cost


class ExplainedLine(NamedTuple):
    """A line of the ledger in plain words, as `explain` shows it."""

    line: int
    time: str
    asked: str
    to: str
    bytes: int
    done: str


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; exit codes: 0 the ledger is intact, 2 command line, 3 it is not intact, 7 it cannot be read."""
    line = parser(prog)
    options = line.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False)
    try:
        ledger = Path(options.ledger) / FILE if Path(options.ledger).is_dir() else Path(options.ledger)
        if not ledger.is_file() and not ledger.with_suffix(ledgers.HEAD).is_file():
            line.error(f"{ledger} does not exist; give a ledger.jsonl, or the folder of a site, which contains one")
        if options.command == RESTORED:
            book_restored(ledger, options.lost, options.epsilon, now=datetime.now(UTC).isoformat(timespec="seconds"))
        complaints = ledgers.verify_ledger(ledger, None if options.command == RESTORED else options.witness)
        lines = list(ledgers.read_lines(ledger))
        head = None if complaints else ledgers.read_head(ledger)
    except OSError as error:
        console.print(f"{error}; correct it and look again", markup=False, soft_wrap=True)
        return int(Exit.DISK)
    except Damaged as error:  # of `restored`, which adds nothing to it then
        return print_error(str(error), Exit.DATA, console, as_json=options.json)
    except ValueError as error:
        line.error(str(error))
    code = int(Exit.DATA if complaints else Exit.OK)
    answer: dict[str, Json] = {"exit": code, "intact": not complaints, "lines": len(lines), "complaints": [*complaints]}
    if options.command == "sum":
        announce(f"adding up {ledger}")  # the accountant takes seconds to import
        answer |= _sum_ledger(lines, options.delta, options.colluding, None if options.json else console)
    elif options.command == "explain":
        answer |= _explain_lines(lines, None if options.json else console)
    if options.json:
        answer["head"] = None if head is None else {**head._asdict()}
        print(json.dumps(answer, indent=1))  # noqa: T201 - the JSON output
        return code
    for complaint in complaints:
        console.print(complaint, markup=False, soft_wrap=True)
    if head is None:
        console.print(f"{ledger} is damaged. {REMEDY}", markup=False, soft_wrap=True)
    elif options.command in ("verify", RESTORED):
        advice = (
            f"Whoever keeps {head.lines}:{head.sha256} can show later, with --witness, whether they were rewritten."
        )
        console.print(f"intact: {len(lines)} lines. {advice}", markup=False, soft_wrap=True)
    return code


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    options: dict[str, Any] = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    made = command_parser(prog, options["description"], formatter_class=options["formatter_class"])
    commands = made.add_subparsers(dest="command", required=True, metavar="verify|sum|explain|restored")
    for name in ("verify", "sum", "explain", RESTORED):
        command = commands.add_parser(name, **options)
        command.add_argument("ledger", metavar="LEDGER", help="a ledger.jsonl, or the folder that holds it")
        add_json_argument(command)
        if name == RESTORED:
            command.add_argument("--lost", required=True, metavar="SHA256", help="as the hospital's log says")
            text = "what the lost lines may have cost a patient: a number, or unknown (then no finite one is left)"
            command.add_argument("--epsilon", type=lost_epsilon, required=True, metavar="E", help=text)
            continue
        command.add_argument("--witness", type=witness, metavar="N:SHA256", help="an earlier head that somebody kept")
        if name == "sum":
            command.add_argument(
                "--delta", type=delta, default=1e-5, help="at which epsilon is computed (default: 1e-5)"
            )
            text = (
                "how many hospitals may work together with the coordinator, where noise is shared (default: all others)"
            )
            command.add_argument("--colluding", type=count_colluding, metavar="N", help=text)
    return made


def witness(text: str) -> tuple[int, str]:
    """A head from its printed form. Raises: argparse.ArgumentTypeError."""
    match = WITNESS.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a witness is a number of lines, a colon and 64 hex digits, found {text!r}")
    return int(match[1]), match[2]


def lost_epsilon(text: str) -> float | None:
    """A number of at least 0; None for `unknown`. Raises: argparse.ArgumentTypeError."""
    epsilon = None if text == "unknown" else float(text)
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise argparse.ArgumentTypeError(f"a number of at least 0, or unknown, is needed, found {text!r}")
    return epsilon


def delta(text: str) -> float:
    """A probability strictly between 0 and 1. Raises: argparse.ArgumentTypeError."""
    number = float(text)  # argparse reports text that is not a number
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"delta is a number between 0 and 1, as in 1e-5, found {text!r}")
    return number


def count_colluding(text: str) -> int:
    """A whole number of at least 0. Raises: argparse.ArgumentTypeError."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number of at least 0 is needed, found {text!r}")
    return int(text)


def _sum_ledger(lines: Sequence[_Line], at: float, colluding: int | None, console: Console | None) -> dict[str, Json]:
    charged = [(line, assume_colluding(event, colluding)) for line, event in ledgers.charged_lines(lines)]
    unread = sum(_unread(line, event) for line, event in charged)
    sum_of_all, splits, unpriced = _sum("all", lines, charged, at), {}, 0
    try:
        from privacy.dp.accounting import by_split  # a slow import, which verify and explain do not need

        splits = by_split([event for _, event in charged], at)
    except UnknownEvent:
        unpriced = 1
    replaced = sum_of_all.cost.epsilon if unpriced else _epsilon_of_replacing([event for _, event in charged], at)
    groups = {name: _group_sums(name, lines, charged, at) for name in ("run", "request")}
    if console is not None:
        for name, sums in groups.items():
            console.print(_table(f"By {name}", name, [*sums, *([sum_of_all] if name == "run" else [])]))
        for (cut, split), cost in splits.items():
            console.print(f"patients of {split} (division {cut}): ε = {format_loss(cost.epsilon)}", markup=False)
        console.print(
            f"where neighbours differ by replacing one patient: ε = {format_loss(replaced)} in all", markup=False
        )
        console.print(f"δ = {at:g}; accountant: {sum_of_all.cost.accountant}", markup=False, soft_wrap=True)
        if unread or unpriced:
            sentence_start = f"{unread} lines hold an event" if unread else "The ledger holds an event"
            console.print(f"{sentence_start} that no accountant here can read: counted as non-private.", markup=False)
    parted: list[Json] = [{"cut": c, "split": s, "epsilon": _number(cost.epsilon)} for (c, s), cost in splits.items()]
    listed: dict[str, Json] = {
        f"by_{name}": [_as_json(sum_of_group) for sum_of_group in sums] for name, sums in groups.items()
    }
    total = {**as_mapping(_as_json(sum_of_all)), "replaced": _number(replaced)}
    return {"delta": at, "all": total, **listed, "by_split": parted, "unread": unread}


def _group_sums(name: str, lines: Iterable[_Line], charged: _Charged, at: float) -> list[Sum]:
    """A sum for each value of a key, in order of first appearance."""
    groups: dict[str, list[_Line]] = {}
    for line in lines:
        if not is_torn(line):
            groups.setdefault(_text(line.get(name)), []).append(line)
    return [
        _sum(value, group, [each for each in charged if _text(each[0].get(name)) == value], at)
        for value, group in groups.items()
    ]


def _sum(name: str, lines: Iterable[_Line], charged: _Charged, at: float) -> Sum:
    complete_lines = [line for line in lines if not is_torn(line)]
    refused = sum(line.get("refused") is not None for line in complete_lines)
    size = sum(_bytes(line) for line in complete_lines)
    return Sum(
        name, len(complete_lines) - refused, size, refused, _price_events(tuple(event for _, event in charged), at)
    )


@lru_cache
def _price_events(events: tuple[Event, ...], at: float) -> Cost:
    from privacy.dp.accounting import compute_cost

    try:
        return compute_cost(events, at)
    except UnknownEvent:
        return compute_cost([NON_PRIVATE], at)


def _epsilon_of_replacing(events: Sequence[Event], at: float) -> float:
    """The total cost if neighbouring data sets differ by replacing one patient."""
    from privacy.dp.replacing import replaced_cost

    return replaced_cost(events, at).epsilon


def _table(title: str, name: str, sums: Sequence[Sum]) -> Table:
    table = Table(name, "messages", "bytes", "refused", "ε", title=title, title_justify="left")
    for row in sums:
        numbers = (f"{row.messages:,}", f"{row.bytes:,}", f"{row.refused:,}", format_loss(row.cost.epsilon))
        table.add_row(Text(row.name), *numbers)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _as_json(row: Sum) -> Json:
    cost: dict[str, Json] = {"epsilon": _number(row.cost.epsilon), "accountant": row.cost.accountant}
    return {"name": row.name, "messages": row.messages, "bytes": row.bytes, "refused": row.refused, **cost}


def _number(epsilon: float) -> Json:
    """Epsilon as in the privacy statement: JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else "Infinity"


def _explain_lines(lines: Sequence[_Line], console: Console | None) -> dict[str, Json]:
    charged = {id(line): event for line, event in ledgers.charged_lines(lines)}
    rows = [_explained_line(number, line, charged.get(id(line))) for number, line in enumerate(lines, start=1)]
    if console is not None:
        table = Table("line", "time", "asked", "to", "bytes", "what was done", title="Ledger", title_justify="left")
        table.columns[0].justify = table.columns[4].justify = "right"
        for row in rows:
            table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row))
        console.print(table)
    return {"explained": [row._asdict() for row in rows]}


def _explained_line(number: int, line: _Line, event: Event | None) -> ExplainedLine:
    """event: the event charged for the line; None if there is none."""
    if is_torn(line):
        done = "torn: the machine stopped while it wrote this line, before the reply could leave"
        return ExplainedLine(number, "", "", "", 0, done)
    request, refused = _text(line.get("request")), line.get("refused")
    if request == RESTORED and event is not None:
        effect = f"put back from an older copy; what its lost lines cost: {describe_in_words(event)}"
        return ExplainedLine(number, _text(line.get("time")), RESTORED, "", 0, effect)
    from pipelines.requests import REQUESTS  # imports torch, which other verbs do without

    holds = f": {REQUESTS[request].says}" if request in REQUESTS else ""
    request_text = f"{request}{holds} (run {_text(line.get('run'))}, round {_text(line.get('round'))})"
    done = "the same reply as before, sent again: not charged again" if event is None else describe_in_words(event)
    if event is not None and _unread(line, event):
        done = f"an event that nobody here can read, so it counts as non-private: {_text(line.get('event'))[:80]}"
    if refused is not None:
        done = f"refused, only the code {_text(refused)} left: {done}"
    return ExplainedLine(
        number, _text(line.get("time")), request_text, _text(line.get("recipient")), _bytes(line), done
    )


def _unread(line: _Line, event: Event) -> bool:
    """Whether the line counts as non-private only because its event is unknown here."""
    return event == NON_PRIVATE and line.get("event") != describe_event(NON_PRIVATE)


def _bytes(line: _Line) -> int:
    size = line.get("bytes")
    return size if isinstance(size, int) else 0


def _text(value: Json) -> str:
    """Text for the terminal: others chose these names, and a control character could overwrite earlier output."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


if __name__ == "__main__":
    end_process(main)
