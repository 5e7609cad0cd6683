"""A translator on a folder: a batch job that goes on, what it refuses, and real data."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch
from scipy import stats

from file_counts import check_file_counts
from harmonize.intensity import Identity, Percentile
from harmonize.randomized import Randomized
from harmonize.scale import Scale
from pipelines.batch import translated_study as job
from pipelines.batch import translation as command
from pipelines.batch.translated_values import apply_translator
from pipelines.data.dicom.reader import read_dicom
from pipelines.data.grids.geometry import grid_of, mask_on_grid
from pipelines.data.images import Slices
from pipelines.data.nifti.reader import read_volume
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.studies import standardize_values
from pipelines.data.study import Volume
from pipelines.data.writing import dicom_series as dicom_writer
from pipelines.models.translator_file import read_translator
from pipelines.runs.exits import Exit
from pipelines.runs.store import UNFINISHED
from pipelines.translate import main
from privacy.deidentify.keyed import make_pseudonym
from translating import (
    KEY,
    NUMBERS,
    SCALE,
    SELECT,
    by_position,
    content,
    errors,
    five,
    only,
    phantom,
    run,
    table,
    translator,
)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return five(tmp_path_factory.mktemp("hospital"))


# -- a batch job ------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path) -> Path:
    """Three patients, four damaged ones, and a localizer."""
    images = phantom(tmp_path / "many", "P", patients=3, damaged=4)
    scout = next(path for path in sorted((images / "PH0-0000").glob("*.dcm")))
    file = pydicom.dcmread(scout)
    file.SeriesInstanceUID, file.SOPInstanceUID = "1.2.3.4.5", "1.2.3.4.6"
    (images / "scout").mkdir()
    file.save_as(images / "scout" / "a.dcm")
    file.SeriesInstanceUID, file.SOPInstanceUID, file.ImageType = "1.2.3.4.7", "1.2.3.4.8", ["ORIGINAL", "PRIMARY", "M"]
    file.save_as(images / "scout" / "b.dcm")
    (images / "letter.txt").write_text("Dear Mr Amsel")
    return images


def test_what_cannot_be_translated_is_told_and_the_rest_is_there(many, tmp_path, capsys):
    file = translator(tmp_path, Identity())
    assert run(file, many, tmp_path / "out", "--json") == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["translated"], told["there"], told["quarantined"]) == (3, 0, 5)
    assert (told["unselected"], told["ignored_files"], told["exit"]) == (1, 1, 0)
    check_file_counts(told, table(tmp_path / "out", "accounted"))
    assert (told["used_files"], told["unselected_files"]) == (12, 1)
    reasons = {line["reason"] for line in table(tmp_path / "out", "quarantine")}
    assert {"single_slice", "gap", "mixed_orientation", "duplicate_slice"} <= reasons
    assert all(line["detail"] for line in table(tmp_path / "out", "quarantine"))
    files = content(tmp_path / "out")
    assert len(files) == 12 and all(name.endswith(".dcm") for name in files)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.stat().st_mode & 0o077]
    assert run(file, many, tmp_path / "out", "--json", "--readers", "2") == Exit.OK
    again = json.loads(capsys.readouterr().out)
    assert (again["there"], again["used_files"]) == (3, 12)
    assert content(tmp_path / "out") == files
    assert [line["mean_change"] for line in table(tmp_path / "out")] == ["0"] * 3


def test_readers_side_by_side_write_the_same_files(many, tmp_path):
    file = translator(tmp_path, Percentile(), NUMBERS)
    assert run(file, many, tmp_path / "one") == run(file, many, tmp_path / "two", "--readers", "3") == Exit.OK
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert table(tmp_path / "one") == table(tmp_path / "two")


def test_a_study_that_changes_while_it_is_translated_is_set_aside(many, tmp_path, monkeypatch):
    made, changed = job._write_new_files, []

    def changing(candidate, *rest):
        if not changed:
            changed.append(path := next(iter(candidate.files)))
            path.unlink()
        made(candidate, *rest)

    monkeypatch.setattr(job, "_write_new_files", changing)
    assert run(translator(tmp_path, Identity()), many, tmp_path / "out") == Exit.OK
    assert len(content(tmp_path / "out")) == 8
    assert "vanished" in {line["reason"] for line in table(tmp_path / "out", "quarantine")}


def test_nothing_that_could_be_translated_is_code_3(many, tmp_path):
    for folder in many.iterdir():
        if folder.is_dir() and folder.name < "PH0-0003":
            shutil.rmtree(folder)
    assert run(translator(tmp_path, Identity()), many, tmp_path / "out") == Exit.DATA


def test_a_full_disk_leaves_no_half_study_and_the_same_command_goes_on(many, tmp_path, monkeypatch):
    file, calls = translator(tmp_path, Identity()), []

    def full(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) >= 7:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    real = dicom_writer._build_file
    monkeypatch.setattr(dicom_writer, "_build_file", full)
    assert run(file, many, tmp_path / "out") == Exit.DISK
    assert len(content(tmp_path / "out")) == 4
    assert not list((tmp_path / "out").rglob(f"{UNFINISHED}*"))
    monkeypatch.undo()
    assert run(file, many, tmp_path / "out") == Exit.OK
    assert len(content(tmp_path / "out")) == 12


def test_what_a_killed_run_left_is_removed_by_the_next(many, tmp_path):
    left = tmp_path / "out" / "abc" / f"{UNFINISHED}123"
    left.mkdir(parents=True)
    (left / "half.dcm").write_bytes(b"half")
    assert run(translator(tmp_path, Identity()), many, tmp_path / "out") == Exit.OK
    assert not left.exists()


def test_a_stop_that_was_asked_for_ends_after_the_study_at_hand(many, tmp_path, monkeypatch):
    real = command.translate_study

    def stopping(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(command, "translate_study", stopping)
    file = translator(tmp_path, Identity())
    assert run(file, many, tmp_path / "out") == Exit.STOPPED
    assert 4 <= len(content(tmp_path / "out")) < 12
    monkeypatch.undo()
    assert run(file, many, tmp_path / "out") == Exit.OK
    assert len(content(tmp_path / "out")) == 12 and len(table(tmp_path / "out")) == 3


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_vetoed_translator_is_refused_unless_it_is_asked_for(hospital, tmp_path, capsys):
    file = translator(tmp_path, Identity(), vetoed=("lesion_order", "cnr"))
    assert run(file, hospital / "P" / "images", tmp_path / "out") == Exit.CONFIG
    assert "lesion_order, cnr" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert run(file, hospital / "P" / "images", tmp_path / "out", "--even-if-vetoed") == Exit.OK
    assert all(
        "vetoed it: lesion_order, cnr" in one.DerivationDescription for one in by_position(tmp_path / "out").values()
    )


def test_a_translator_that_measures_about_the_gland_needs_masks_or_a_word(hospital, tmp_path, capsys):
    file = translator(tmp_path, Percentile(), NUMBERS, gland=True, images=Slices(slices="gland"))
    images, masks = hospital / "P" / "images", hospital / "P" / "masks" / "gland"
    assert run(file, images, tmp_path / "out") == Exit.CONFIG
    assert "--no-gland" in capsys.readouterr().err
    assert run(file, images, tmp_path / "out", "--gland", str(masks)) == Exit.OK
    assert float(table(tmp_path / "out")[0]["gland_order"]) > 0.999
    assert run(file, images, tmp_path / "other", "--no-gland") == Exit.OK
    about_gland, about_middle = only(tmp_path / "out").image.values, only(tmp_path / "other").image.values
    assert not np.array_equal(about_gland, about_middle)


def test_all_that_is_wrong_is_told_at_once(hospital, tmp_path, capsys):
    file = translator(tmp_path, Identity(), vetoed=("cnr",))
    images = hospital / "P" / "images"
    arguments = [file, str(images), "--out", str(images / "out"), "--readers", "-1", "--gland", "x", "--no-gland"]
    assert main(arguments) == Exit.CONFIG
    said = capsys.readouterr().err
    for part in ("--out must not lie in FOLDER", "--readers must be >= 0", "vetoed", "contradict", "--key is needed"):
        assert part in said
    assert not (images / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"source": NiftiSource(folder=".")}, "--select"),
        ({"source": DicomSource(folder=".", derive="adc")}, "fitted to diffusion-weighted images"),
    ],
)
def test_a_translator_that_does_not_suit_the_folder_is_refused(hospital, tmp_path, capsys, more, said):
    file = translator(tmp_path, Identity(), **more)
    kind = ["--kind", "dicom"]
    assert run(file, hospital / "P" / "images", tmp_path / "out", *kind) == Exit.CONFIG
    assert said in capsys.readouterr().err
    assert run(file, hospital / "P" / "images", tmp_path / "out", *kind, "--select", "ImageType=ADC") == Exit.OK


def test_a_translator_file_says_what_it_needs_and_names_no_place(tmp_path):
    path = Path(translator(tmp_path, Percentile(low=2.0), NUMBERS, gland=True, vetoed=("cnr",)))
    found = read_translator(path)
    assert (found.settings, found.scale, found.images) == (Percentile(low=2.0), SCALE, Slices())
    assert (found.site, found.label, found.gland, found.vetoed) == ("north", "percentile", True, ("cnr",))
    assert torch.equal(found.params["numbers"], NUMBERS["numbers"]) and found.facts["origin"] == {"run": "tiny"}
    assert isinstance(found.source, DicomSource) and (found.source.folder, found.source.select) == (".", SELECT)
    assert b"secret" not in path.read_bytes() and b"PH0" not in path.read_bytes()


@pytest.mark.parametrize("damage", ["short", "flipped", "later", "foreign"])
def test_a_file_that_is_no_translator_is_refused_in_words(tmp_path, damage, monkeypatch):
    if damage == "later":
        monkeypatch.setattr("pipelines.models.translator_file.FORMAT", 2)
    path = Path(translator(tmp_path, Identity()))
    monkeypatch.undo()
    data = path.read_bytes()
    middle = len(data) // 2
    changed = {"short": data[:-5], "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]}
    path.write_bytes(changed.get(damage, b"letter" if damage == "foreign" else data))
    later = r"was made by a later version \(format 2; this program reads up to 1\): upgrade this program"
    other = r"is not a translator .*; give a file of a site's translators/"
    with pytest.raises(ValueError, match=later if damage == "later" else other):
        read_translator(path)


# -- real data --------------------------------------------------------------------------------------------------------


def test_real_adc_keeps_its_geometry_and_the_order_of_gland_and_lesion(data, tmp_path):
    if not (data / "prostatex").is_dir():
        pytest.skip(f"no ProstateX below {data}")
    labels, source = data / "prostatex" / "labels", data / "prostatex" / "dicom" / "ProstateX-0000"
    assert run(translator(tmp_path, Percentile(), NUMBERS), source, tmp_path / "out", "--json") == Exit.OK
    before, after = only(source), only(tmp_path / "out")
    old, new = before.image, after.image
    assert np.array_equal(old.affine, new.affine) and old.values.shape == new.values.shape == (84, 128, 19)
    assert after.patient == make_pseudonym(KEY, before.patient)
    gland = on(read_volume(labels / "whole_gland_Bosma22b" / "11373_1001396.nii.gz"), old)
    lesion = on(read_volume(labels / "lesion_expert" / "11373_1001396.nii.gz"), old)
    assert float(old.values[gland].mean()) == pytest.approx(1454, rel=0.01)
    assert float(stats.spearmanr(old.values[gland], new.values[gland]).statistic) > 0.999
    assert abs(float(new.values[gland].mean() - old.values[gland].mean())) > 50  # something was translated
    assert new.values[lesion].mean() < 0.9 * new.values[gland].mean()
    assert errors(tmp_path / "out") <= errors(source)
    joined = b"".join(content(tmp_path / "out").values())
    assert b"ProstateX-000" not in joined and b"1.3.6.1.4.1.14519" not in joined


@pytest.mark.parametrize(
    ("values", "select", "scale", "prior"),
    [
        ("adc", SELECT, SCALE, "prostate_adc"),
        ("standardized", {"SequenceName": "*tse2d1_25"}, Scale(low=-4.0, high=4.0), "prostate_t2w"),
    ],
)
def test_real_series_through_a_translator_that_no_patient_taught(data, tmp_path, values, select, scale, prior):
    """Learnt in 40 small steps, where 900 are the default: what is written is what the network changed, in the header's
    unit, and a lesion stays as dark, in parts of the peripheral zone, as it was within a tenth."""
    if not (data / "prostatex").is_dir():
        pytest.skip(f"no ProstateX below {data}")
    labels, source = data / "prostatex" / "labels", data / "prostatex" / "dicom" / "ProstateX-0000"
    how = Randomized(prior=prior, steps=40, batch=8)
    made = {"scale": scale, "images": Slices(values=values), "source": DicomSource(folder=".", select=select)}
    file = translator(tmp_path, how, how.learn_parameters((1, 48, 48)), **made)
    assert run(file, source, tmp_path / "out", "--json") == Exit.OK
    before, after = (read_dicom(DicomSource(folder=str(at), select=select))[0][0] for at in (source, tmp_path / "out"))
    old, new = np.asarray(before.image.values, float), np.asarray(after.image.values, float)
    assert np.array_equal(before.image.affine, after.image.affine) and before.unit == after.unit
    for header in by_position(tmp_path / "out").values():
        assert header.get("RescaleType") in (None, "US")  # no unit is claimed that was not there: unspecified
    unit = old / 1000 if values == "adc" else standardize_values(old.astype(np.float32))
    step = 1000 if values == "adc" else old[old != 0].std()
    seen = Volume(unit.astype(np.float32), before.image.affine)
    change = apply_translator(seen, old == 0, read_translator(Path(file)), None).change * step
    assert np.abs(new - np.maximum(old + change, 0)).max() <= 1.5
    assert np.abs(new - old).mean() > 1 and ((new == 0) == (old == 0)).mean() > 0.999 and new.min() >= 0
    assert (new[old == 0] == 0).all()
    zones = read_volume(labels / "zonal_Yuan23" / "11373_1001396.nii.gz")
    outer = on(Volume((np.asarray(zones.values) == 1).astype(np.float32), zones.affine), before.image)
    lesion = on(read_volume(labels / "lesion_expert" / "11373_1001396.nii.gz"), before.image)
    dark = [float(np.median(image[lesion]) / np.median(image[outer & ~lesion])) for image in (old, new)]
    assert dark[0] < 0.9 and dark[1] == pytest.approx(dark[0], abs=0.1)
    assert errors(tmp_path / "out") <= errors(source)


def on(mask: Volume, image: Volume) -> np.ndarray:
    return mask_on_grid(mask, grid_of(image)) > 0
