"""Every operation on a file fails once, in turn; then the same command again: what is lost, and what is spent twice?

    python -m benchmarks.faults.faults --trials benchmarks/measured/faults.jsonl --minutes 60
    python -m benchmarks.faults.faults --trials benchmarks/measured/faults.jsonl --report

As SQLite's tests do it: a command (`tests/fault_sweep.py`) runs once to count its operations, then once for each of
them and each fault that it can meet (`tests/injected.py`), in a copy of the folder and of the process. Operations are
many and alike, so they are told apart by place: a sort of file, and the two innermost functions that work on it (a loop
over patients is one place). First comes one trial of each place that no command has had, then each fault of each place,
then those of each command, then all others. Trials of each of these parts are spread over a command's whole life,
written down one by one, and not made again, so a later call goes on. `--report` writes docs/results/data/faults.json.
"""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, write_tables

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fault_sweep  # noqa: E402
from injected import FAULTS, tensors_can_be_made  # noqa: E402

SPREAD = 0.6180339887498949
"""Multiples of the golden ratio, without what stands before the point, are spread evenly however many there are."""
ALLOCATIONS = 100
"""The most allocations that are tried of a command after one of each place: there are tens of thousands."""
Places = dict[str, list[str]]
"""Where a command makes its operations, by kind."""


class Trial(NamedTuple):
    """Let the `at`-th operation of a kind meet a fault."""

    case: str
    kind: str
    fault: str
    at: int


def trials(case: str, places: Places, kinds: list[str]) -> list[Trial]:
    """All trials of a command, the first of each place and fault before all others."""
    first, others = list[Trial](), list[Trial]()
    for kind in sorted({*kinds} & {*places}):
        ones = {place: number for number, place in reversed([*enumerate(places[kind])])}.values()
        step = max(1, len(places[kind]) // ALLOCATIONS) if kind == "allocation" else 1
        for fault in FAULTS[kind]:
            first += [Trial(case, kind, fault, at) for at in sorted(ones)]
            others += [Trial(case, kind, fault, at) for at in range(0, len(places[kind]), step) if at not in ones]
    return first + others


def ordered(asked: list[Trial], counted: dict[str, Places], made: list[fault_sweep.Outcome]) -> list[Trial]:
    """First a trial of each place that no command has had, then of each place and fault that none has, then of those
    that its own has not, then all others; in each part, trials of any beginning lie all over a command's life.
    """
    here = {where(one) for one in made}
    anywhere = {one[1:] for one in here}
    places = {(kind, place) for kind, _, place in anywhere}
    found: tuple[list[Trial], ...] = ([], [], [], [])
    for _, one in sorted(((number * SPREAD) % 1, one) for number, one in enumerate(asked)):
        place = counted[one.case][one.kind][one.at]
        new = (
            (one.kind, place) not in places,
            (one.kind, one.fault, place) not in anywhere,
            (*one[:3], place) not in here,
            True,
        )
        found[new.index(True)].append(one)
        places.add((one.kind, place))
        anywhere.add((one.kind, one.fault, place))
        here.add((*one[:3], place))
    return [one for part in found for one in part]


def where(one: fault_sweep.Outcome) -> tuple[str, str, str, str]:
    """What a trial covers."""
    return one.case, one.kind, one.fault, one.place


def sweep(path: Path, cases: list[str], kinds: list[str], minutes: float, new: bool) -> None:
    """Make the trials that have not been made, until the time is over. new: at places only that no command has had."""
    until, made = time.monotonic() + 60 * minutes, read(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name).resolve()
        fault_sweep.warmed(folder / "warm", harmonized="harmonized run" in cases)
        tensors_can_be_made()
        asked, counted, ready = list[Trial](), dict[str, Places](), {}
        for case in (one for one in fault_sweep.CASES if one.name in cases):
            start = fault_sweep.prepared(case, folder / case.name / "start")
            work = folder / case.name / "work"
            places = fault_sweep.counted(case, start, work)
            wanted = fault_sweep.result(case, work)
            shutil.rmtree(work)
            places["allocation"] = fault_sweep.counted(case, start, work, allocations=True).get("allocation", [])
            shutil.rmtree(work)
            ready[case.name], counted[case.name] = (case, start, wanted, work), places
            asked += trials(case.name, places, kinds)
            note(path.with_suffix(".counts"), case.name, places)
        done, anywhere = {Trial(*one[:4]) for one in made}, {where(one)[1:] for one in made}
        for one in (one for one in ordered(asked, counted, made) if one not in done):
            if time.monotonic() > until:
                break
            if new and (one.kind, one.fault, counted[one.case][one.kind][one.at]) in anywhere:
                continue
            case, start, wanted, work = ready[one.case]
            outcome = fault_sweep.tried(case, start, wanted, work, *one[1:])
            anywhere.add(where(outcome)[1:])
            with path.open("a") as file:
                file.write(json.dumps(outcome) + "\n")


def note(path: Path, case: str, places: Places) -> None:
    """Add a command's operations and places to the counts."""
    known = counts_of(path) if path.exists() else {}
    known[case] = {kind: (len(found), sorted({*found})) for kind, found in places.items()}
    names = sorted({place for kinds in known.values() for _, found in kinds.values() for place in found})
    number = {place: at for at, place in enumerate(names)}
    of = {
        name: {kind: (count, [number[place] for place in found]) for kind, (count, found) in kinds.items()}
        for name, kinds in known.items()
    }
    path.write_text(
        "\n".join(['{"places": [', ",\n".join(map(json.dumps, names)), f'], "commands": {json.dumps(of)}}}', ""])
    )


def counts_of(path: Path) -> dict[str, dict[str, tuple[int, list[str]]]]:
    """Of each command and kind, how many operations there are, and their places."""
    said = json.loads(path.read_text())
    return {
        name: {kind: (count, [said["places"][at] for at in found]) for kind, (count, found) in kinds.items()}
        for name, kinds in said["commands"].items()
    }


def read(path: Path) -> list[fault_sweep.Outcome]:
    """The trials that were made."""
    return [fault_sweep.Outcome(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def report(path: Path) -> None:
    """Write the tables of docs/results/faults.md: operations, places and trials by command and by fault."""
    made, counts = read(path), counts_of(path.with_suffix(".counts"))
    asked = {
        (name, kind, fault, place)
        for name, kinds in counts.items()
        for kind, (_, found) in kinds.items()
        for place in found
        for fault in FAULTS[kind]
    }
    tried = {*map(where, made)}
    rows = [summed(name, {name: kinds}, asked, made) for name, kinds in counts.items()]
    others = {name: kinds for name, kinds in counts.items() if name != "harmonized run"}
    rows.append(summed("all but the harmonized run, each place once", others, asked, made))
    rows.append(summed("all, each place once", counts, asked, made))
    by_fault = []
    for kind, fault in [(each, fault) for each in FAULTS for fault in FAULTS[each]]:
        mine = {one[1:] for one in asked if one[1:3] == (kind, fault)}
        ends = row([one for one in made if (one.kind, one.fault) == (kind, fault)])
        by_fault.append([kind, fault, covered(mine, {one[1:] for one in tried}), *ends])
    columns = ["trials", "right at once", "a code, then right", "power cut, then right", "then a named code"]
    columns += ["trained again", "wrong"]
    of_case = ["command", "operations on files", "tensors made", "places tried", "with each fault"]
    operations = ["operation", "fault", "places tried", *columns]
    write_tables(
        "faults", {"commands": make_table([*of_case, *columns], rows), "faults": make_table(operations, by_fault)}
    )


def summed(
    name: str,
    commands: Mapping[str, Mapping[str, tuple[int, list[str]]]],
    asked: set[tuple[str, str, str, str]],
    made: list[fault_sweep.Outcome],
) -> list[str]:
    """A row of some commands: their operations, which of their places and faults were tried, and how trials ended."""
    numbers = Counter[str]()
    for kinds in commands.values():
        numbers.update({kind: number for kind, (number, _) in kinds.items()})
    tensors, mine = numbers.pop("allocation", 0), [one for one in made if one.case in commands]
    here, tried = ({one[1:] for one in some if one[0] in commands} for some in (asked, {*map(where, mine)}))
    places = covered({one[::2] for one in here}, {one[::2] for one in tried})
    return [name, f"{sum(numbers.values()):,}", f"{tensors:,}", places, covered(here, tried), *row(mine)]


def covered(asked: set[Any], tried: set[Any]) -> str:
    """How many of those that were asked for were tried."""
    return f"{len(asked & tried):,} of {len(asked):,}"


def row(mine: list[fault_sweep.Outcome]) -> list[str]:
    """How trials ended."""
    ends = Counter(end(one) for one in mine)
    return [f"{len(mine):,}", *(f"{ends[kind]:,}" for kind in ("at once", "code", "cut", "named", "again", "wrong"))]


def end(one: fault_sweep.Outcome) -> str:
    """How a trial ended, in a word."""
    if one.what != "right":
        return next((word for word in ("named", "again") if one.what.startswith(word)), "wrong")
    return "at once" if one.first == 0 else "cut" if one.first == fault_sweep.CUT else "code"


def main() -> None:
    """See the head of this file."""
    line = make_parser(__doc__)
    line.add_argument("--trials", type=Path, required=True, help="a file with a line for each trial that was made")
    line.add_argument("--minutes", type=float, default=1e9)
    line.add_argument("--case", action="append", choices=[case.name for case in fault_sweep.CASES])
    line.add_argument("--kind", action="append", choices=list(FAULTS))
    line.add_argument("--new", action="store_true", help="only at places where no command has been tried")
    line.add_argument("--report", action="store_true", help="write the page's figures, and try nothing")
    options = line.parse_args()
    if options.report:
        return report(options.trials)
    options.trials.parent.mkdir(parents=True, exist_ok=True)
    cases = options.case or [case.name for case in fault_sweep.CASES]
    sweep(options.trials, cases, options.kind or list(FAULTS), options.minutes, options.new)
    ends = Counter(end(one) for one in read(options.trials))
    print(", ".join(f"{name}: {count}" for name, count in ends.items()))
    return None


if __name__ == "__main__":
    main()
