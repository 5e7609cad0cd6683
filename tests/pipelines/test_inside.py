"""A look inside a hospital's files: one line a site, before computing and after ingest; none of it leaves."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from pipelines.data.images import Slices
from pipelines.data.sources import DicomSource, GlandMask
from pipelines.hospital.files import Files
from pipelines.hospital.overview import look_into_source
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE


def test_real_adc_maps_are_told_with_unit_reason_and_percentiles(data: Path) -> None:
    source = DicomSource(folder=str(data / "prostatex" / "dicom"), select={"ImageType": "ADC"})
    line = look_into_source(Files(source, None, None), Slices(), 1)
    assert line.startswith("2 patients, 2 studies, 2 of them read")
    low, middle, high = (int(text) for text in re.findall(r"99 %: (\d+), (\d+), (\d+) x 1e-6", line)[0])
    assert 0 < low < 800 < middle < 2000 < high < 4000
    assert "series chosen: " in line and "adc" in line and "because: " in line and "ImageType says ADC" in line
    assert line.count("because") == line.count("(2)") == 1  # what both studies say is told once
    files = sum(path.is_file() for path in (data / "prostatex" / "dicom").rglob("*"))
    total, *four = (int(text) for text in re.findall(r"(\d+) (?:files:|used|quarantined|not selected|not imag)", line))
    assert total == files == sum(four)
    assert "only the headers" not in line  # both were read whole


def test_images_cut_about_the_gland_are_looked_at_without_opening_a_mask(data: Path) -> None:
    source = DicomSource(folder=str(data / "prostatex" / "dicom"), select={"ImageType": "ADC"})
    files = Files(source, None, GlandMask(folder="masks that nobody opens"))
    assert look_into_source(files, Slices(slices="gland"), 1).startswith("2 patients, 2 studies, 2 of them read")


def test_what_is_no_adc_map_is_told_before_any_computing(data: Path) -> None:
    source = DicomSource(folder=str(data / "prostatex" / "dicom"), select={"SeriesDescription": "t2"})
    assert "not_adc (" in look_into_source(Files(source, None, None), Slices(), 1)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(BASE))
    return tmp_path


def test_headers_are_looked_at_and_nothing_is_trained(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tiny.yaml", "--check", "--headers"]) == Exit.OK
    said = capsys.readouterr().err
    for site in BASE["sites"]:
        (line,) = [text for text in said.splitlines() if text.startswith(f"{site}: ")]
        assert "patients" in line and "ADC at 1, 50 and 99 %" in line and "files: " in line
        (studies,) = re.findall(r"patients, (\d+) studies, 3 of them read", line)
        assert line.endswith(f"Of {int(studies) - 3} studies only the headers were read; their files count as used.")
    left = {path.name for path in (tiny / "runs" / "tiny").iterdir() if path.is_dir()}
    assert left <= {"sites", "federation"}
    assert not list((tiny / "runs").rglob("cohorts"))
    assert run(["tiny.yaml", "--check", "--headers", "--json"]) == Exit.OK
    assert set(json.loads(capsys.readouterr().out)["inside"]) == set(BASE["sites"])
    assert run(["tiny.yaml", "--headers"]) == Exit.OK  # it looks without being told twice
    assert not list((tiny / "runs").rglob("cohorts"))


def test_the_end_of_ingest_tells_a_line_a_site_which_stays_there(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tiny.yaml", "--until", "ingest"]) == Exit.OK
    said = capsys.readouterr().err
    (artifact,) = (tiny / "runs" / "tiny" / "ingest").glob("*/sites.json")
    facts = json.loads(artifact.read_text())
    for site in BASE["sites"]:
        kept = (tiny / "runs" / "tiny" / "sites" / site / "inside.txt").read_text().strip()
        assert f"{site}: {kept}" in said
        assert f"{facts[site]['files']} files: {facts[site]['used_files']} used" in kept
        words = re.findall(r"99 %: (\d+), (\d+), (\d+)", kept)[0]
        assert not [word for word in (*words, "because", "chosen") if f'"{word}"' in json.dumps(facts[site])]
        assert not {"evidence", "percentiles", "series", "told"} & set(facts[site])
        table = (tiny / "runs" / "tiny" / "sites" / site / "accounted.csv").read_text()
        assert table.count("\n") == 1 + facts[site]["files"]
        mode = os.stat(tiny / "runs" / "tiny" / "sites" / site / "inside.txt").st_mode
        assert mode & 0o077 == 0
    assert run(["tiny.yaml", "--until", "ingest", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)["files"]
    assert told[next(iter(told))]["files"] == facts[next(iter(told))]["files"]
