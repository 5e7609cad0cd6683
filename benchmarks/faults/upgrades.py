"""What the same command costs patients after an upgrade: a private run of an older commit, then newer programs.

    python -m benchmarks.faults.upgrades [COMMIT ...]

For each commit: its checkout makes a private run of two phantom hospitals (tests/golden/tiny, three methods made
private). The folder is copied for each newer program, which runs the same command there. Writes
benchmarks/measured/upgrades.json: ε of each hospital's ledger at δ = 1e-5, before and after. Minutes, on one processor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import write_measured
from privacy.dp.accounting import compute_cost
from privacy.release import ledger as ledgers

ROOT = Path(__file__).parents[2]
COMMITS = ("9640fc4", "817b6e3")
DELTA = 1e-5


def settings() -> dict[str, Any]:
    """The golden run, privately."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "golden" / "tiny" / "tiny.yaml").read_text())
    made |= {"privacy": {"epsilon": 3.0, "sampling": 0.5, "views": 2}, "pooling": "refused", "audit": {"canaries": 0}}
    for site in made["sites"].values():
        site["policy"] = {"budget": {"epsilon": 15.0}}
    made["train"]["methods"] = {name: {"name": name} for name in ("local", "fedavg", "fedper")}
    made["train"].pop("method_work")
    return made


def epsilons(folder: Path) -> dict[str, float]:
    """ε that each hospital's ledger has charged a patient."""
    found = sorted(folder.glob("runs/golden/sites/*/ledger.jsonl"))
    return {
        path.parent.name: round(compute_cost(ledgers.spent_events(ledgers.read_lines(path)), DELTA).epsilon, 3)
        for path in found
    }


def run(program: Path, folder: Path, *options: str) -> int:
    """Run a checkout's program on the settings in a folder; returns the exit code."""
    command = [sys.executable, "-m", "pipelines.run", "private.yaml", *options]
    there = {**os.environ, "PYTHONPATH": str(program)}
    return subprocess.run(command, cwd=folder, env=there, capture_output=True, check=False).returncode  # noqa: S603


def worktree(*words: str) -> None:
    """Add or remove a checkout of another commit."""
    subprocess.run(["git", "worktree", *words], cwd=ROOT, check=True)  # noqa: S603, S607


def main(commits: Sequence[str]) -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        programs = {"this program": ROOT}
        for commit in dict.fromkeys((*commits, COMMITS[-1])):
            programs[commit] = place / commit
            worktree("add", "--detach", str(place / commit), commit)
        try:
            for commit in commits:
                first = place / f"run-{commit}"
                first.mkdir()
                (first / "private.yaml").write_text(yaml.safe_dump(settings()))
                if run(programs[commit], first):
                    sys.exit(f"{commit} did not finish its run")
                newer = [(COMMITS[-1], ())] if commit != COMMITS[-1] else []
                for then, options in (*newer, ("this program", ()), ("this program", ("--spend",))):
                    again = place / f"{commit}-{then.replace(' ', '-')}{''.join(options)}"
                    shutil.copytree(first, again)  # with the files' times
                    code = run(programs[then], again, *options)
                    what = {"made_by": commit, "then": " ".join((then, *options)), "code": code}
                    rows.append({**what, "before": epsilons(first), "after": epsilons(again)})
                    print(rows[-1], flush=True)
        finally:
            for commit in programs.keys() - {"this program"}:
                worktree("remove", "--force", str(place / commit))
    write_measured("upgrades", rows)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("commits", nargs="*", default=COMMITS)
    main(parser.parse_args().commits)
