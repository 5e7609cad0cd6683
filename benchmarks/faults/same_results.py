"""Are two runs of one configuration the same, bit for bit, whatever version of the code made them?

    python -m benchmarks.faults.same_results RUN OTHER

RUN and OTHER are folders runs/<name>. Every tensor is compared by its bytes; text (JSON, ledger, tables, pages) without
what differs between any two runs: times, and digests, which cover the times of files. The names of folders that are
digests count as one name. Prints what differs, and exits with 1 if anything does. A run with differential privacy
draws its noise from the operating system, so two such runs always differ.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from pathlib import Path

from benchmarks.shared.options import make_parser

DIGEST = re.compile(r"(?<![0-9a-z])(?=[0-9a-f]*[0-9])[0-9a-f]{12,128}(?![0-9a-z])")
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
DAY = re.compile(rf"\d{{1,2}} (?:{MONTHS}) \d{{4}}(?:, \d\d:\d\d UTC)?")
TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[+-]\d\d:\d\d|Z| UTC)?)?")
SECONDS = re.compile(r'("(?:seconds|finished|size)": |<td class="num">)[0-9.e-]+( s<)?')
SEAL = 32
BINARY = {".dcm", ".gz", ".nii", ".png"}


def neutral(text: str) -> str:
    """Text without digests and times."""
    return SECONDS.sub(r"\1_\2", DAY.sub("TIME", TIME.sub("TIME", DIGEST.sub("DIGEST", text))))


def content(path: Path) -> str:
    """A digest of what a file says. Messages kept on disk begin with a seal of 32 bytes, which covers their digests."""
    data = path.read_bytes()
    if path.suffix not in BINARY:
        data = data if path.suffix else data[SEAL:]
        data = neutral(data.decode("latin-1")).encode("latin-1")  # a letter for each byte, tensors' too
    return hashlib.sha256(data).hexdigest()


def contents(root: Path) -> dict[str, Counter[str]]:
    """Name of a file, without digests -> the contents of the files of that name."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            found.setdefault(neutral(path.relative_to(root).as_posix()), Counter())[content(path)] += 1
    return found


def main() -> int:
    line = make_parser(__doc__)
    line.add_argument("run", type=Path)
    line.add_argument("other", type=Path)
    options = line.parse_args()
    one, other = contents(options.run), contents(options.other)
    files = sum(sum(counts.values()) for counts in one.values())
    differing = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    for name in differing:
        there = (name in one, name in other)
        print(f"{'differs' if all(there) else 'only in ' + str(options.run if there[0] else options.other)}: {name}")
    print(f"{files} files, {len(differing)} names whose files differ")
    return bool(differing) or not files


if __name__ == "__main__":
    sys.exit(main())
