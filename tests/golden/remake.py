"""Run the golden configuration and write down what came out, and the digest of each stage's source."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def result(folder: Path) -> dict[str, object]:
    """What the golden run must give: counts exactly, losses and scores to a tolerance."""
    root = folder / "runs" / "golden"
    (ingest,) = root.glob("ingest/*/sites.json")
    (scores,) = root.glob("report/*/scores.json")
    sites = {
        site: {k: facts[k] for k in ("splits", "rejected_by_reason", "scanners")}
        for site, facts in json.loads(ingest.read_text()).items()
    }
    losses = {
        p.stem: json.loads(p.read_text())["totals"]
        for p in sorted(root.glob("train/*/*.json"))
        if p.name != "manifest.json"
    }
    auc = {
        f"{r['method']} {r['protocol']} {' '.join(r['sites'])}": r["value"]
        for r in json.loads(scores.read_text())
        if r["measure"] == "AUC"
    }
    return {"sites": sites, "losses": losses, "auc": auc}


def same(known: Any, found: Any) -> bool:
    """Whether two results are one on different processors, which round differently; three rounds amplify that by far
    less than this.
    """
    if isinstance(found, dict):
        alike = isinstance(known, dict) and known.keys() == found.keys()
        return alike and all(same(known[key], found[key]) for key in found)
    if isinstance(found, list):
        return len(known) == len(found) and all(map(same, known, found))
    return math.isclose(known, found, rel_tol=5e-3, abs_tol=5e-3) if isinstance(found, float) else known == found


def stages() -> dict[str, dict[str, object]]:
    """Version and source digest of every stage."""
    from pipelines.coordinator.run import STAGES

    found = {}
    for stage in STAGES:
        source = ROOT / "pipelines" / "coordinator" / "stages" / f"{stage.name}.py"
        code = hashlib.sha256(computation(source.read_text()).encode()).hexdigest()
        found[stage.name] = {"version": stage.version, "source": code[:16]}
    return found


def computation(source: str) -> str:
    """What a file computes: its syntax tree without imports, docstrings and comments, which cannot change a result."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_no_computation(each)]
    # Python 3.12 has a field more, 3.13 leaves empty ones out: the digests are those of 3.11.
    shown: dict[str, bool] = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return ast.dump(tree, **shown).replace(", type_params=[]", "")


def _is_no_computation(node: ast.AST) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from pipelines.run import main

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if main([str(HERE / "tiny" / "tiny.yaml")]):
            sys.exit("the golden run failed")
        expected, found = HERE / "tiny" / "expected.json", result(Path(folder))
        if not same(json.loads(expected.read_text()), found):  # else the change would show digits of this processor
            expected.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    (HERE / "stages.json").write_text(json.dumps(stages(), indent=1, sort_keys=True) + "\n")
