"""Studies that get the look of others without labels, model or second hospital: fitted, judged, shown, written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harmonize.translation import list_curve_translators
from harmonize.veto import Limits
from pipelines.batch import harmonizing
from pipelines.data.dicom.reader import read_dicom
from pipelines.data.grids.geometry import grid_of, mask_on_grid
from pipelines.data.nifti.reader import read_volume
from pipelines.data.sources import DicomSource
from pipelines.data.study import Volume
from pipelines.harmonize import METHODS, main
from pipelines.models.translator_file import read_translator
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.exits import Exit
from pipelines.translate import main as translate
from translating import KEY, content, errors, studies, table

SMALL = ("--size", "32", "--spacing", "2", "--readers", "1")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Six patients of scanner L as DICOM and as NIfTI, and six others of scanner P as NIfTI."""
    folder = tmp_path_factory.mktemp("hospitals")
    made = {}
    for name, scanner, form, seed in (
        ("dicom", "L", "dicom", 1),
        ("nifti", "L", "nifti", 1),
        ("target", "P", "nifti", 2),
    ):
        source = PhantomSource(scanner=scanner, patients=6, slices=4, seed=seed, format=form)  # type: ignore[arg-type]
        write(source, folder / name)
        made[name] = folder / name / "images"
    return made


def run(tmp_path: Path, folder: Path, *more: str) -> int:
    key = tmp_path / "site.key"
    if not key.exists():
        key.write_bytes(KEY)
        key.chmod(0o600)
    return main([str(folder), "--out", str(tmp_path / "out"), "--key", str(key), *SMALL, *more])


def test_every_method_is_offered_and_knows_what_it_needs():
    assert set(METHODS) == set(harmonizing.TRANSLATORS)
    assert all(not harmonizing.TRANSLATORS[name].learns for name in METHODS)
    assert {settings.name for settings in harmonizing.TRANSLATORS.values()} <= {*list_curve_translators(), "randomized"}


@pytest.mark.parametrize("by", ["nyul", "zscore", "percentile", "reinhard"])
def test_studies_come_nearer_to_the_wanted_look_or_nothing_is_written(hospitals, tmp_path, by, capsys):
    code = run(tmp_path, hospitals["nifti"], "--to", str(hospitals["target"]), "--by", by, "--json")
    page = (tmp_path / "out.harmonized.html").read_text(encoding="utf-8")
    file = read_translator(tmp_path / "out.translator" / f"{by}.safetensors")
    assert "This page shows patients" in page and page.count("wanted look") > 6
    before, after = map(float, re.search(r">([\d.]+)<[^>]+> before, <\w+>([\d.]+)<[^>]+> after", page).groups())
    if file.vetoed:
        assert code == Exit.CONFIG and "Refused" in page and not (tmp_path / "out").exists()
        assert "quality control vetoed" in capsys.readouterr().err
    else:
        assert code == Exit.OK and ("Accepted" if after < before else "of no use") in page
        assert json.loads(capsys.readouterr().out)["translated"] == 6
        assert len(table(tmp_path / "out")) == 6


def test_what_harms_is_refused_and_written_only_on_request(hospitals, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harmonizing, "list_vetoes", lambda quality, limits: ("edges", "no_effect"))
    arguments = ("--to", str(hospitals["target"]))
    assert run(tmp_path, hospitals["nifti"], *arguments) == Exit.CONFIG
    assert "vetoed this translator (edges)" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert "Refused" in (tmp_path / "out.harmonized.html").read_text(encoding="utf-8")
    assert run(tmp_path, hospitals["nifti"], *arguments, "--even-if-vetoed") == Exit.OK
    assert len(table(tmp_path / "out")) == 6


def test_dicom_keeps_its_geometry_and_is_what_translate_writes_with_the_same_file(hospitals, tmp_path):
    assert run(tmp_path, hospitals["dicom"], "--to", str(hospitals["target"]), "--target-kind", "nifti") == Exit.OK
    files = content(tmp_path / "out")
    assert len(files) == 24
    old, new = studies(hospitals["dicom"]), studies(tmp_path / "out")
    affines = [sorted(np.round(study.image.affine, 3).tolist() for study in part) for part in (old, new)]
    assert affines[0] == affines[1]
    file = tmp_path / "out.translator" / "nyul.safetensors"
    again = ["--out", str(tmp_path / "again"), "--key", str(tmp_path / "site.key"), "--readers", "1"]
    assert translate([str(file), str(hospitals["dicom"]), *again]) == Exit.OK
    assert content(tmp_path / "again") == files


def test_written_dicom_is_standard(hospitals, tmp_path):
    assert run(tmp_path, hospitals["dicom"], "--to", str(hospitals["target"]), "--target-kind", "nifti") == Exit.OK
    assert not errors(tmp_path / "out")


def test_a_translators_file_is_a_target_and_the_second_run_finds_all_there(hospitals, tmp_path, capsys):
    assert run(tmp_path, hospitals["nifti"], "--to", str(hospitals["target"]), "--keep-names") == Exit.OK
    file = str(tmp_path / "out.translator" / "nyul.safetensors")
    capsys.readouterr()
    assert run(tmp_path, hospitals["nifti"], "--to", file, "--keep-names", "--json") == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["translated"], told["there"]) == (0, 6)
    page = (tmp_path / "out.harmonized.html").read_text(encoding="utf-8")
    assert "nothing was there to judge it by" in page


def test_the_translator_that_no_patient_taught_needs_no_target(hospitals, tmp_path, monkeypatch):
    short = harmonizing.Randomized(steps=2, width=4)
    monkeypatch.setattr(harmonizing, "TRANSLATORS", {"randomized": short})
    assert run(tmp_path, hospitals["nifti"], "--by", "randomized", "--keep-names") == Exit.OK
    assert len(table(tmp_path / "out")) == 6


def test_the_sample_is_spread_over_the_folder_and_the_rest_is_translated_too(hospitals, tmp_path, monkeypatch):
    monkeypatch.setattr(harmonizing, "STUDIES", 2)
    assert run(tmp_path, hospitals["nifti"], "--to", str(hospitals["target"]), "--keep-names") == Exit.OK
    page = (tmp_path / "out.harmonized.html").read_text(encoding="utf-8")
    assert "judged on 2 studies" in re.sub(r"<[^>]+>", "", page) and len(table(tmp_path / "out")) == 6
    old, new = (
        torch.from_numpy(read_volume(next(root.rglob("*.nii.gz"))).values)
        for root in (hospitals["nifti"], tmp_path / "out")
    )
    assert old.shape == new.shape and not torch.equal(old, new)


def test_all_that_is_wrong_with_a_command_line_is_told_at_once(hospitals, tmp_path, capsys):
    wrong = ("--to", str(tmp_path / "nowhere"), "--size", "8", "--spacing", "0")
    assert main([str(hospitals["nifti"]), "--out", str(tmp_path / "out"), *wrong]) == Exit.CONFIG
    told = capsys.readouterr().err
    assert all(text in told for text in ("does not exist", "--size must be", "--spacing must be"))
    assert run(tmp_path, hospitals["nifti"]) == Exit.CONFIG and "--to: missing" in capsys.readouterr().err
    assert run(tmp_path, hospitals["nifti"], "--to", str(hospitals["nifti"])) == Exit.CONFIG
    assert "is FOLDER itself" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(tmp_path, hospitals["nifti"], "--to", str(tmp_path / "empty"), "--target-kind", "nifti") == Exit.CONFIG
    assert "empty" in capsys.readouterr().err and Limits().gain == 0.1


def test_help_is_quick_and_the_command_has_its_name():
    done = subprocess.run(
        [sys.executable, "-m", "pipelines", "harmonize", "--help"], capture_output=True, text=True, check=True
    )
    assert "--to TARGET" in done.stdout and "nyul" in done.stdout


def test_a_real_study_gets_anothers_look_and_its_lesion_stays_dark(data, tmp_path):
    """ADC of two scanners' studies. Errors of dciodvfy are none that the archive's own files do not have."""
    if not (data / "prostatex").is_dir():
        pytest.skip(f"no ProstateX below {data}")
    source, labels = data / "prostatex" / "dicom" / "ProstateX-0000", data / "prostatex" / "labels"
    target = data / "prostatex" / "dicom" / "ProstateX-0001"
    assert run(tmp_path, source, "--to", str(target)) == Exit.OK
    before, after = (
        read_dicom(DicomSource(folder=str(folder), select={"kind": "adc"}))[0][0]
        for folder in (source, tmp_path / "out")
    )
    old, new = np.asarray(before.image.values, float), np.asarray(after.image.values, float)
    assert np.array_equal(before.image.affine, after.image.affine) and np.abs(new - old).mean() > 1
    zones = read_volume(labels / "zonal_Yuan23" / "11373_1001396.nii.gz")
    lesion = mask_on(read_volume(labels / "lesion_expert" / "11373_1001396.nii.gz"), before.image)
    outer = mask_on(Volume((np.asarray(zones.values) == 1).astype(np.float32), zones.affine), before.image) & ~lesion
    dark = [float(np.median(image[lesion]) / np.median(image[outer])) for image in (old, new)]
    assert dark[0] < 0.9 and dark[1] < dark[0] + 0.1, "the lesion stands out as it did, or more"
    assert errors(tmp_path / "out") <= errors(source)


def mask_on(mask: Volume, image: Volume) -> np.ndarray:
    return mask_on_grid(mask, grid_of(image)) > 0
