"""How often the default run's translation is accepted: python -m benchmarks.studies.accepted_translations 10

Ingest and score once, then synthesize, sample and translate as often as is said. The synthesis draws its noise from the
system, so that no two repetitions are equal; the veto's limits are those of prostate_adc.yaml. Writes the table
`accepted` of docs/results/data/default-run.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, write_tables

COLUMNS = (
    "repetition", "hospital", "translation", "distance before", "distance after", "lesion contrast", "lesion order",
    "patient order", "edges", "class drift", "cycle error",
)  # fmt: skip
RUN = [sys.executable, "-m", "pipelines.run", "prostate_adc.yaml"]


def repeat_translation(kept: Path, folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """What `translate` tells of each hospital, from a copy of a run that has its scores."""
    shutil.copytree(kept, folder)
    subprocess.run([*RUN, "--until", "translate"], cwd=folder, check=True)  # noqa: S603
    (told,) = folder.glob("runs/prostate_adc/translate/*/vafl.json")
    hospitals: Mapping[str, Mapping[str, Any]] = json.loads(told.read_text(encoding="utf-8"))
    return hospitals


def format_row(number: int, hospital: str, reply: Mapping[str, Any]) -> list[str]:
    """A line of the table."""
    q = reply["quality"]
    figures = ("sw_before", "sw_after", "contrast_ratio", "lesion_correlation", "gland_correlation")
    words = ", ".join(reply["vetoed"])
    return [
        str(number), hospital, f"refused: {words}" if words else "accepted",
        *(f"{q[name]:.3f}" for name in figures),
        f"{q['gradient_correlation']:.3f}", f"{q['drift']:+.3f}", f"{q['cycle_mae']:.3f}",
    ]  # fmt: skip


def main(repetitions: int) -> None:
    """Repeat, and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        kept = Path(place, "kept")
        kept.mkdir()
        subprocess.run([*RUN, "--until", "score"], cwd=kept, check=True)  # noqa: S603
        for number in range(1, repetitions + 1):
            replies = repeat_translation(kept, Path(place, str(number)))
            rows += [format_row(number, site, reply) for site, reply in replies.items() if reply["quality"]]
    write_tables("default-run", {"accepted": make_table(COLUMNS, rows)})


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("repetitions", type=int)
    main(parser.parse_args().repetitions)
