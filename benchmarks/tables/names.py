"""How plain the names are, before and after: python -m benchmarks.tables.names BEFORE AFTER

BEFORE and AFTER are checkouts. Counts as tests/laws/test_names.py does: bare participles and one-word names among
functions, odd words among 1,000 names that are bound, and private functions without a docstring. Prints the table
`names` of docs/results/data/structure.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.shared.options import make_parser

sys.path.append(str(Path(__file__).parents[2] / "tests" / "laws"))
import test_names as names

COLUMNS = ("package", "bare participles", "names of one word", "odd words in 1,000 names", "private, unexplained")


def count_names(root: Path, package: str) -> tuple[float, float, float, float]:
    """The four measures of a package: three shares in percent, one in a thousand."""
    names.ROOT = root
    names.read_room.cache_clear()
    functions, bound = names.read_room(package)
    bare = [function.name.strip("_") for function in functions]
    private = [function for function in functions if function.name.startswith("_")]
    single = [name for name in bare if "_" not in name and name not in names.FIXED]
    odd = [name for name in bound if name.strip("_").lower() in names.ODD]
    unexplained = [function for function in private if not function.explained]
    return (
        100 * sum(map(names.is_participle, bare)) / len(bare),
        100 * len(single) / len(bare),
        1000 * len(odd) / len(bound),
        100 * len(unexplained) / max(1, len(private)),
    )


def main(before: Path, after: Path) -> None:
    """Print the rows."""
    rows = []
    for package in names.ROOMS:
        pairs = zip(count_names(before, package), count_names(after, package), strict=True)
        units = ("%", "%", "", "%")
        rows.append(
            [package, *(f"{old:.1f} → {new:.1f} {unit}".strip() for (old, new), unit in zip(pairs, units, strict=True))]
        )
    print(json.dumps({"columns": COLUMNS, "rows": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    main(*vars(parser.parse_args()).values())
