"""What one private reply costs to price and to book, against the lines that a hospital's ledger has already.

    python -m benchmarks.speed.ledger_age [--lines 25 1000 3000 10000] [--code FOLDER --name before]
    python -m benchmarks.tables.derived --write cost-curves

Milliseconds of the processor of `privacy.release.gate.release_reply`: the median of some releases of a reply without
tensors, whose event is a round of DP-SGD and a validation loss. fsync does nothing meanwhile, so that the disk is left
out. `far`: the budget is a thousand times what is spent. `near`: these replies spend the last of it. `opening` is the
first look of a process at the ledger, which checks every line. Each case is a process of its own. --code: another
folder of the project, whose code is run instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Composed, Gaussian, Part, PoissonSampled, SelfComposed, describe_event
from privacy.message import Call, Message, to_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import release_reply
from privacy.release.policy import Budget, Most, Policy

NAME, TIMES, DELTA = "ledger_age", 10, 1e-5
LINES = (25, 1000, 3000, 10000)
COMMAND = "python -m benchmarks.speed.ledger_age"
STEPS = SelfComposed(PoissonSampled(0.05, Gaussian(3.0)), 5)
EVENT = Composed((Part("cut", "train", STEPS), Part("cut", "validation", Gaussian(30.0))))


def fill_ledger(path: Path, lines: int) -> None:
    """So many replies that left: runs of a hundred rounds."""
    for number in range(lines):
        call = {"time": "2026-01-01T00:00:00+00:00", "run": f"r{number // 100}/fedavg", "round": number % 100}
        reply = {"event": describe_event(EVENT), "sha256": f"{number:064d}", "bytes": 10, "again": False}
        more = {"request": "train", "recipient": "coordinator", "refused": None, "commit": f"{number:032d}"}
        ledgers.append_line(path, {**call, **reply, **more})


def measure(lines: int) -> dict[str, float]:
    """Milliseconds of one release, and of opening the ledger, at a ledger of so many lines."""
    os.fsync = lambda file: None  # of the processor's time alone
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        fill_ledger(path, lines)
        ledgers._KNOWN.clear()
        begun = time.process_time()
        with ledgers.open_transaction(path):
            found = {"opening": 1000 * (time.process_time() - begun)}
        spent = {"far": 0.0, "near": 0.0}
        for way in spent:
            epsilon = compute_cost([SelfComposed(EVENT, lines + 2 * (TIMES + 3))], DELTA).epsilon
            total = 1000 * epsilon if way == "far" else 1.01 * epsilon
            policy = Policy(budget=Budget(epsilon=total, delta=DELTA), most=Most(release=total))
            found[way] = statistics.median([_release(path, policy, f"{way}{time}") for time in range(TIMES + 3)][3:])
        return found


def _release(path: Path, policy: Policy, name: str) -> float:
    """Release once. Returns: milliseconds of the processor."""
    call, reply = Call("now/fedavg", 0, "train", {}), to_bytes(Message({}, {}))
    begun = time.process_time()
    release_reply(
        reply,
        describe_event(EVENT),
        forms=None,
        call=call,
        policy=policy,
        ledger=path,
        recipient="coordinator",
        now="2026-01-01T00:00:00+00:00",
        replay=False,
        commit=name,
    )
    return 1000 * (time.process_time() - begun)


def table(kept: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Milliseconds by lines of the ledger."""
    columns = ["lines", *(f"{way}: {code}, ms" for way in ("far", "near") for code in ("before", "now"))]
    rows = []
    for lines in sorted(map(int, kept["now"])):
        before, now = kept["before"][str(lines)], kept["now"][str(lines)]
        cells = [f"{each[way]:.1f}" for way in ("far", "near") for each in (before, now)]
        rows.append([f"{lines:,}", *cells, f"{now['opening']:.0f}"])
    return make_table([*columns, "first look of a process, ms"], rows, COMMAND)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=LINES)
    parser.add_argument("--code", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--name", default="now", help="of the code in the table")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.only is not None:
        return print(json.dumps(measure(options.only)))
    for lines in options.lines:
        environment = {**os.environ, "PYTHONPATH": str(options.code.resolve()), "OMP_NUM_THREADS": "1"}
        asked = [sys.executable, __file__, "--only", str(lines)]
        run = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
        kept = read_measured(NAME)
        kept.setdefault(options.name, {})[str(lines)] = json.loads(run.stdout)
        write_measured(NAME, kept, sort=True)
        print(lines, run.stdout.strip(), flush=True)
    return None


if __name__ == "__main__":
    main()
