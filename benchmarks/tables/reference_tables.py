"""Write the tables of the reference that follow from the code: today that of the translators.

    python -m benchmarks.tables.reference_tables

What stands between the marks `<!-- translators -->` and `<!-- end -->` of docs/reference/stages.md is written anew; a
test holds it equal to the code.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args, get_type_hints

from benchmarks.shared.options import make_parser

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "reference" / "stages.md"
MARKS = re.compile(r"(<!-- translators -->\n).*?(<!-- end -->)", re.DOTALL)


def translators() -> str:
    """Name, first sentence and `learns` of each translator."""
    from harmonize.translation import Translators

    rows = ["| name | what it does | learns from several patients |", "| --- | --- | --- |"]
    for kind in get_args(Translators):
        name = get_args(get_type_hints(kind)["name"])[0]
        what = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        rows.append(f"| `{name}` | {what} | {'yes' if kind.learns else 'no'} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The page as it must be."""
    table = translators()
    return MARKS.sub(lambda found: f"{found[1]}{table}{found[2]}", PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
