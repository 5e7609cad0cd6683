"""The whole run over a wire: every message serialized, every hospital's worker new for every request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pipelines.coordinator.run
import rig
from pipelines.run import main
from privacy.message import to_bytes
from privacy.release import ledger as book

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny" / "tiny.yaml"


class Wire(rig.Wire):
    """Takes the place of the in-process engine, and weighs every reply."""

    weighed: ClassVar[dict[str, list[int]]] = {}

    def ask(self, call, messages, *, deadline_s=None):
        answers = super().ask(call, messages, deadline_s=deadline_s)
        for site, reply in answers.replies.items():
            self.weighed.setdefault(site, []).append(len(to_bytes(reply)))
        return answers


def results(folder: Path) -> tuple[dict[str, bytes], object]:
    root = folder / "runs" / "golden"
    state = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.glob("federation/**/state"))}
    models = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.glob("sites/*/models/**/*")) if p.is_file()}
    (scores,) = root.glob("report/*/scores.json")
    return {**state, **models}, json.loads(scores.read_text())


def test_what_passes_in_process_passes_over_a_wire(tmp_path, monkeypatch):
    near, far = tmp_path / "near", tmp_path / "far"
    for folder in (near, far):
        folder.mkdir()
    monkeypatch.chdir(near)
    assert main([str(GOLDEN)]) == 0
    monkeypatch.setattr(pipelines.coordinator.run, "InProcess", Wire)
    monkeypatch.chdir(far)
    assert main([str(GOLDEN)]) == 0
    assert results(near) == results(far)
    assert len(results(near)[0]) > 10
    for site in "ab":
        lines = list(book.lines(far / "runs" / "golden" / "sites" / site / "ledger.jsonl"))
        assert [line["bytes"] for line in lines] == Wire.weighed[site], "a byte left that is not in the ledger"
