"""What harmonization cannot do is told before a patient pays, by `--check` and by the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.coordinator.rehearsing import check_synthesis
from pipelines.coordinator.world import SitesMissing
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines_settings import BASE, RUNS

HARMONIZE: dict[str, Any] = {
    "score": {"release": "public", "target": "a"},
    "synthesis": {"name": "dp_wgan_gp", "variant": "paper"},
    "sampling": {"name": "raw", "variant": "paper"},
    "translate": {"z": {"name": "z_score"}},
}
GOLDEN = Path(__file__).parents[1] / "golden/tiny/tiny.yaml"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(**changes: Any) -> str:
    Path("case.yaml").write_text(yaml.safe_dump({**BASE, "harmonize": {**HARMONIZE, **changes}}))
    return "case.yaml"


@pytest.mark.parametrize("options", [["--check"], []])
def test_the_papers_literal_setting_is_refused_before_a_patient_is_read(options, capsys):
    assert main([write(), *options, "--json"]) == Exit.CONFIG
    printed = capsys.readouterr()
    assert "harmonize.synthesis" in printed.out + printed.err and "doublings: " in printed.out + printed.err
    ledgers = [path.read_text() for path in Path("runs").glob("*/sites/*/ledger.jsonl")]
    assert not any(word in text for text in ledgers for word in ("ingest", "score", "synthesize"))


def test_with_closeness_doubled_the_check_is_in_order(capsys):
    assert main([write(sampling={"name": "raw", "variant": "paper", "doublings": 6}), "--check"]) == Exit.OK


@pytest.mark.parametrize(
    "path", [path for path in (*RUNS, GOLDEN) if "\nharmonize:" in path.read_text()], ids=lambda path: path.stem
)
def test_no_shipped_setting_is_refused(path):
    config = validate_settings(read_yaml(path.read_text(), environment={"CONSILIUM_DATA": "/data"}), Config)
    check_synthesis(config, dict.fromkeys(config.sites, 10))


def test_a_draw_that_kept_too_few_names_the_way_out_and_not_the_same_draw():
    text = str(SitesMissing("sample", {"a": "too_few_images"}, where="log.txt"))
    assert "doublings" in text and "draws the same images again" in text
    assert "doublings" not in str(SitesMissing("sample", {"a": "busy"}, where="log.txt"))
