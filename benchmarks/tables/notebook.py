"""Run the notebook's cells in a folder of their own, and write what they print into it: examples/first_steps.ipynb.

python -m benchmarks.tables.notebook
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.shared.options import make_parser

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"


def printed(notebook: dict[str, Any]) -> list[str]:
    """What each cell of code prints, run one after another."""
    there: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), there)  # noqa: S102 - our own file
            found.append(out.getvalue())
    return found


def written(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with these outputs."""
    texts = iter(printed(notebook))
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        text = next(texts)
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []
        cell["execution_count"] = number + 1
    return notebook


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    sys.path.insert(0, str(ROOT))
    read = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        done = written(read)
    NOTEBOOK.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
