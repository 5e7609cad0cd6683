"""The same FENDA run in each framework, as its user writes it: run, and the user's lines counted.

    python benchmarks/peers [--python NAME=PYTHON ...] [--only NAME ...] [--json docs/results/data/peers.json]

Scripts lie beside this file; `task.py` is given to all of them and counts for none. Other frameworks live in
environments of their own (`--python flower=FLOWER/bin/python`); one that is not there is named and keeps its last
figures. Each script runs in an empty folder and ends with a line of the accuracy at each hospital. Lines are those of
the script without blank lines, comments, docstrings and imports, after `ruff format`, which formatted all of them.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import tokenize
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COLUMNS = ["framework", "version", "what was run", "user's lines", "accuracy, mean of 4 (lowest)", "wall s"]
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
           tokenize.ENDMARKER}  # fmt: skip


class Peer(NamedTuple):
    """title and package, as pip calls it; what its script runs; the script, and other files of the user."""

    title: str
    package: str
    what: str
    script: str
    others: tuple[str, ...] = ()


PEERS = {
    "consilium": Peer("Consilium", "consilium", "FENDA, by name", "fenda_consilium.py"),
    "fl4health": Peer("FL4Health", "fl4health", "FENDA, by its class", "fenda_fl4health.py"),
    "flower": Peer("Flower", "flwr", "FENDA, written by the user", "fenda_flower.py"),
    "nvflare": Peer(
        "NVIDIA FLARE", "nvflare", "FENDA, written by the user", "fenda_nvflare.py", ("fenda_nvflare_client.py",)
    ),
    "monai": Peer("MONAI FL", "monai", "FENDA, written by the user, server too", "fenda_monai.py"),
    "fedbiomed": Peer("Fed-BioMed", "fedbiomed", "FENDA, written by the user", "fenda_fedbiomed.py"),
}


def lines_of(source: str) -> int:
    """Lines of code: without blank lines, comments, docstrings and imports."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {n for t in tokens if t.type not in SKIPPED for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def version(python: str, package: str) -> str:
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip()


def row(peer: Peer, python: str) -> list[str] | None:
    """The line of a table, or None where the script did not run; why goes to the screen."""
    quiet = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    own = os.environ.get("PYTHONPATH", "")
    path = f"{HERE}{os.pathsep}{own}" if peer.package == "consilium" else str(HERE)
    with tempfile.TemporaryDirectory() as place:
        begun = time.monotonic()
        done = subprocess.run(  # noqa: S603 - our scripts, by an interpreter that the caller names
            [python, str(HERE / peer.script), place], cwd=place, capture_output=True, text=True, check=False,
            env={**os.environ, **quiet, "PYTHONPATH": path},
        )  # fmt: skip
        spent = time.monotonic() - begun
    said = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not said:
        print(f"{peer.title}: did not run: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1][:300]}")
        return None
    found = json.loads(said[-1])["sites"]
    lines = sum(lines_of((HERE / name).read_text()) for name in (peer.script, *peer.others))
    mean, worst = sum(found.values()) / len(found), min(found.values())
    return [
        peer.title,
        version(python, peer.package),
        peer.what,
        str(lines),
        f"{mean:.3f} ({worst:.3f})",
        f"{spent:.0f}",
    ]


def main() -> None:
    line = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    line.add_argument("--python", action="append", default=[], metavar="NAME=PYTHON")
    line.add_argument("--only", nargs="+", choices=tuple(PEERS), default=tuple(PEERS))
    line.add_argument("--json", type=Path)
    options = line.parse_args()
    pythons = dict.fromkeys(("consilium", "nvflare", "monai"), sys.executable)
    pythons |= dict(one.split("=", 1) for one in options.python)
    old = json.loads(options.json.read_text())["runs"]["rows"] if options.json and options.json.exists() else []
    rows = {one[0]: one for one in old}
    for name in options.only:
        if name not in pythons:
            print(f"{PEERS[name].title}: no environment; say --python {name}=PYTHON")
        elif (found := row(PEERS[name], pythons[name])) is not None:
            rows[found[0]] = found
            print(" | ".join(found), flush=True)
    if options.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)  # noqa: S607
        order = [peer.title for peer in PEERS.values()]
        table = {
            "command": "python benchmarks/peers --python flower=FLOWER/bin/python ...",
            "commit": commit.stdout.strip(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "columns": COLUMNS,
            "rows": sorted(rows.values(), key=lambda one: order.index(one[0])),
        }
        options.json.write_text(json.dumps({"runs": table}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
