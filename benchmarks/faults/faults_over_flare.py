"""The same as `faults.py`, over NVIDIA FLARE itself: a server, two hospitals and their jobs, as processes.

    python -m benchmarks.faults.faults_over_flare --trials benchmarks/measured/faults.jsonl --minutes 60

A federation stays; each trial empties the folders of coordinator and hospitals, lets one operation of the coordinator's
job or of a hospital's job fail (`tests/flare_struck`), and gives the same command again. One trial takes a minute or
more, so each place is tried with one of its faults, in turn; a power cut ends one process.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import yaml

from benchmarks.shared.options import make_parser

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fault_sweep  # noqa: E402
from injected import FAULTS, PLACE  # noqa: E402
from limited import Ended  # noqa: E402

from benchmarks.faults.faults import SPREAD, Places, Trial, end, note, read  # noqa: E402
from flare_processes import Federation, federation  # noqa: E402

PROCESSES = {
    "FLARE, coordinator's job": ("runner_process",),
    "FLARE, a hospital's job": ("flare_hooks job", "prod_00/a"),
}
"""Words in the command of each process that meets a fault."""
PATIENCE_S = 300
ARMED = "CONSILIUM_ARMED"


class Swept:
    """A federation, the folder of its coordinator and hospitals, and the file that arms a fault."""

    def __init__(self, far: Federation, armed: Path) -> None:
        self.far, self.armed = far, armed
        self.case = next(case for case in fault_sweep.CASES if case.over == "job")
        self.work = far.folder / "coordinator"

    def empty(self) -> None:
        """As before the first run, with the hospitals' keys."""
        keys = {site: (self.far.home(site) / "pseudonym.key") for site in self.far.sites}
        kept = {site: key.read_bytes() for site, key in keys.items()}
        shutil.rmtree(self.work / "runs")
        for site, key in keys.items():
            key.parent.mkdir(parents=True)
            key.write_bytes(kept[site])
            key.chmod(0o600)

    def arm(self, case: str, **said: object) -> None:
        text = json.dumps({"process": PROCESSES[case], "root": str(self.work), **said})
        self.armed.with_suffix(".new").write_text(text)
        self.armed.with_suffix(".new").rename(self.armed)

    def run(self) -> Ended:
        """The operator's command; -9 if it hangs."""
        operator = self.far.submit(self.far.folder / "tiny.yaml")
        try:
            said, _ = operator.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            operator.kill()
            said, _ = operator.communicate()
        return Ended(operator.returncode, said)

    def places(self, case: str) -> dict[str, list[str]]:
        """Where a process makes its operations in a run without a fault."""
        told = self.armed.with_suffix(".list")
        told.unlink(missing_ok=True)
        if (self.work / "runs/tiny/ingest").exists():
            self.empty()
        self.arm(case, list=str(told))
        ended = self.run()
        if ended.code:
            raise RuntimeError(f"the run fails without a fault: {ended}")
        found: dict[str, list[str]] = {}
        for line in told.read_text().splitlines():
            kind, _, place = line.partition("\t")
            found.setdefault(kind, []).append(place)
        return found

    def tried(self, wanted: fault_sweep.Result, case: str, kind: str, fault: str, at: int) -> fault_sweep.Outcome:
        met = Path(f"{self.work}{PLACE}")
        met.unlink(missing_ok=True)
        self.arm(case, kind=kind, fault=fault, at=at)
        first = self.run()
        self.armed.unlink(missing_ok=True)
        then = self.run()
        what = fault_sweep.verdict(self.case, self.work, wanted, first, then, fault)
        where = met.read_text() if met.exists() else ""
        self.empty()
        return fault_sweep.Outcome(case, kind, fault, at, first.code, then.code, what, where)


def main() -> None:
    """See the head of this file."""
    line = make_parser(__doc__)
    line.add_argument("--trials", type=Path, required=True, help="a file with a line for each trial that was made")
    line.add_argument("--minutes", type=float, default=1e9)
    options = line.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        os.environ |= {ARMED: str(folder / "armed.json"), "PYTHONPATH": f"{ROOT}/tests/flare_struck:{ROOT}"}
        sweep(folder, options.trials, options.minutes)
    ends = Counter(end(one) for one in read(options.trials) if one.case in PROCESSES)
    print(", ".join(f"{name}: {count}" for name, count in ends.items()))


def sweep(folder: Path, path: Path, minutes: float) -> None:
    """Make the trials that have not been made, spread over the life of each process, until the time is over."""
    case = next(case for case in fault_sweep.CASES if case.over == "job")
    start = fault_sweep.prepared(case, folder / "start")
    sites = {site: yaml.safe_load((start / f"{site}.yaml").read_text())["site"] for site in "ab"}
    for part in (fault_sweep.STUDIES, "tiny.yaml"):
        shutil.move(start / part, folder / part)
    shutil.move(start, folder / "coordinator")
    with federation(folder, sites, homes="coordinator/runs/tiny/sites") as far:
        swept = Swept(far, folder / "armed.json")
        counted = {one: swept.places(one) for one in PROCESSES}
        for one, found in counted.items():
            note(path.with_suffix(".counts"), one, found)
        wanted = fault_sweep.result(case, swept.work)
        swept.empty()
        until = time.monotonic() + 60 * minutes
        for one, kind, fault, at in chosen(counted, {(*one[:3], one.place) for one in read(path)}):
            if time.monotonic() > until:
                break
            outcome = swept.tried(wanted, one, kind, fault, at)
            with path.open("a") as file:
                file.write(json.dumps(outcome) + "\n")


def chosen(counted: Mapping[str, Places], made: set[tuple[str, str, str, str]]) -> list[Trial]:
    """One trial of each place of each process, with one of its faults, that was not made."""
    asked = []
    for case, found in counted.items():
        firsts = {(kind, place): at for kind in found for at, place in reversed([*enumerate(found[kind])])}
        for number, ((kind, place), at) in enumerate(sorted(firsts.items())):
            fault = FAULTS[kind][number % len(FAULTS[kind])]
            if (case, kind, fault, place) not in made:
                asked.append(Trial(case, kind, fault, at))
    return [one for _, one in sorted(((number * SPREAD) % 1, one) for number, one in enumerate(asked))]


if __name__ == "__main__":
    main()
