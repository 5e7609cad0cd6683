"""From a folder to a configuration that --check accepts; no patient's name on the way; nothing invented."""

from __future__ import annotations

import csv
import dataclasses
import os
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import TypeAdapter

from federation.models.features import Features
from pipelines.discovery import draft as drafts
from pipelines.discovery.found import Discovery, Site
from pipelines.discovery.places import site_names
from pipelines.discovery.safe import known_words, secrets_of
from pipelines.init import main
from pipelines.loader.names import RESERVED, is_name
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.run import main as run_main
from pipelines.runs.exits import Exit
from pipelines.settings import floors
from pipelines.settings.floors import FEATURES_BY_CHANNELS
from pipelines.settings.load import load_config

PLANTED = ("Okonkwo", "Wilhelmina", "MRN77123")


def phantom(folder: Path, wrote: str = "dicom", *, seed: int = 1, patients: int = 3) -> Path:
    write(PhantomSource(scanner="P", patients=patients, seed=seed, slices=4, format=wrote), folder)
    return folder


def drafted(folder: Path, capsys, *words: str) -> tuple[int, str, str]:
    code = main([str(folder), *words])
    said = capsys.readouterr()
    return code, said.out, " ".join(said.err.split())


def plant(folder: Path) -> None:
    """Give every DICOM file a patient's name and identifier, also where operators write them."""
    for path in folder.rglob("*.dcm"):
        dataset = pydicom.dcmread(path)
        dataset.PatientName = f"{PLANTED[0]}^{PLANTED[1]}"
        dataset.PatientID = f"{PLANTED[2]}{path.parent.name[-1]}"
        dataset.SeriesDescription = f"ep2d ADC {PLANTED[0]} for Dr Somebody"
        dataset.Manufacturer = f"Scanner of {PLANTED[1]}"
        dataset.save_as(path)


@pytest.mark.parametrize("wrote", ["dicom", "nifti"])
def test_a_phantom_hospital_on_disk_gives_a_configuration_that_check_accepts(tmp_path, monkeypatch, capsys, wrote):
    monkeypatch.chdir(tmp_path)
    phantom(tmp_path / "clinic", wrote)
    code, out, err = drafted(Path("clinic"), capsys, "--out", "my.yaml")
    assert (code, out) == (Exit.OK, "") and "accepted by --check" in err
    assert run_main(["my.yaml", "--check"]) == Exit.OK
    site = load_config("my.yaml").sites["clinic"]
    assert site.source.folder == "clinic/images" and site.labels.folder == "clinic/masks/lesion"
    assert site.gland is not None and site.gland.folder == "clinic/masks/gland"
    assert "labels.csv" in Path("my.yaml").read_text()  # what could be taken instead


def test_looking_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    phantom(tmp_path / "clinic")
    before = sorted(tmp_path.rglob("*"))
    assert drafted(Path("clinic"), capsys)[0] == Exit.OK
    assert sorted(tmp_path.rglob("*")) == before


def test_what_was_written_also_runs(tmp_path, monkeypatch, capsys, thorough):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("St. Mary", "north")):
        phantom(tmp_path / "studies" / name, "nifti", seed=seed, patients=4)
    assert drafted(Path("studies"), capsys, "--out", "my.yaml")[0] == Exit.OK
    settings = yaml.safe_load(Path("my.yaml").read_text())
    assert set(settings["sites"]) == {"st_mary", "north"}
    assert set(settings["train"]["methods"]) > {"local_svm", "local_ridge", "moments", "local", "fedavg"}
    settings["train"]["schedule"]["rounds"] = 1
    settings["train"]["work"] |= {"epochs": None, "steps": 2}
    for model in settings["train"]["method_model"].values():
        model |= {"pictures": 60} if model["name"] == "features" else {}
    settings["evaluate"]["copies"] = 5
    few = replace(FEATURES_BY_CHANNELS[1], pictures=60)  # of the floors, which the draft leaves to their default
    monkeypatch.setattr(floors, "FEATURES_BY_CHANNELS", {1: few})
    Path("short.yaml").write_text(yaml.safe_dump(settings))
    assert run_main(["short.yaml", *([] if thorough else ["--until", "evaluate"])]) == Exit.OK


@given(
    st.sampled_from(["pictures", "dicom", "nifti"]), st.integers(1, 4), st.integers(3, 40), st.booleans(), st.booleans()
)
def test_every_draft_begins_with_heads_on_features_and_compares_networks_with_them(sort, sites, patients, gland, many):
    """As the project's results do: no draft is of networks alone, and moments stand where hospitals can send them."""
    each = tuple(
        Site(f"s{n}", Path("x"), {"kind": sort}, None, {"folder": "g"} if gland else None, patients=patients)
        for n in range(sites)
    )
    found = Discovery(sort, each, task={"names": ["a", "b", "c"]} if many else None)
    told = yaml.safe_load(drafts.draft_yaml(found, folder="x", file="x.yaml", name="x"))
    methods, training = list(told["train"]["methods"]), told["train"]
    assert methods[:2] == ["local_svm", "local_ridge"] and told["evaluate"]["reference"] is None
    assert ("moments" in methods) == (sites > 1) == ("moments" in training.get("method_model", {}))
    if sites > 1:
        of = TypeAdapter(Features).validate_python(training["method_model"]["moments"])
        side = told["images"]["size"]
        assert not of.of.complaints((3 if sort == "pictures" else 1, side, side))


def test_no_name_or_identifier_is_printed_or_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = phantom(tmp_path / "clinic") / "images"
    plant(folder)
    for place, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"{PLANTED[0]}_{place}")
    code, _, err = drafted(Path("clinic"), capsys, "--out", "my.yaml")
    text = Path("my.yaml").read_text() + err
    assert code == Exit.DATA and "FILL IN" in text  # the masks bear the old names
    assert not [name for name in PLANTED if name.lower() in text.lower()]
    assert "Somebody" not in text and "ep2d adc" in text


def test_a_hospital_is_not_called_by_a_patient(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        phantom(tmp_path / "studies" / str(seed), seed=seed)
        plant(tmp_path / "studies" / str(seed))
    (tmp_path / "studies" / "1").rename(tmp_path / "studies" / PLANTED[0])
    code, out, err = drafted(Path("studies"), capsys)
    assert code == Exit.DATA and list(yaml.safe_load(out)["sites"]) == ["hospital"]
    assert PLANTED[0].lower() not in (out + err).lower()


def test_without_labels_the_line_to_fill_is_marked_and_check_refuses_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    phantom(tmp_path / "clinic")
    shutil.rmtree(tmp_path / "clinic" / "masks")
    (tmp_path / "clinic" / "labels.csv").rename(tmp_path / "labels.csv")
    code, _, err = drafted(Path("clinic"), capsys, "--out", "my.yaml")
    lines = Path("my.yaml").read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.strip().startswith("labels: FILL IN")]
    assert code == Exit.DATA and f"{line}" in err and "no labels were found" in err
    assert run_main(["my.yaml", "--check"]) == Exit.CONFIG
    assert "replace it as the comments beside it say" in " ".join(capsys.readouterr().err.split())
    lines[line - 1] = "    labels: {kind: table, file: labels.csv, patient: patient, label: label, slice: slice}"
    Path("my.yaml").write_text("\n".join(lines))
    assert run_main(["my.yaml", "--check"]) == Exit.OK
    assert drafted(Path("clinic"), capsys, "--labels", "labels.csv")[0] == Exit.DATA  # a file, not a folder
    (tmp_path / "tables").mkdir()
    (tmp_path / "labels.csv").rename(tmp_path / "tables" / "labels.csv")
    assert drafted(Path("clinic"), capsys, "--labels", "tables")[0] == Exit.OK


@pytest.mark.parametrize(("columns", "code"), [({"label": 0, "smoker": 1}, 0), ({"smoker": 0, "married": 1}, 3)])
def test_a_column_is_the_label_only_if_it_says_so(tmp_path, monkeypatch, capsys, columns, code):
    monkeypatch.chdir(tmp_path)
    phantom(tmp_path / "clinic", patients=4)
    shutil.rmtree(tmp_path / "clinic" / "masks")
    table = tmp_path / "clinic" / "labels.csv"
    with table.open() as file:
        patients = sorted({row["patient"] for row in csv.DictReader(file)})
    rows = [[patient, *((place + shift) % 2 for shift in columns.values())] for place, patient in enumerate(patients)]
    table.write_text("\n".join(";".join(map(str, row)) for row in [["id", *columns], *rows]))
    assert drafted(Path("clinic"), capsys, "--out", "my.yaml")[0] == code
    if code == 0:
        assert load_config("my.yaml").sites["clinic"].labels.label == "label"
    else:
        assert "smoker, married; choose one" in Path("my.yaml").read_text()


def test_doubts_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in ((1, "one"), (2, "two")):
        phantom(tmp_path / "studies" / name, seed=seed)
    (source, *_) = sorted((tmp_path / "studies" / "one" / "images").iterdir())
    shutil.copytree(source, tmp_path / "studies" / "two" / "images" / "visitor")  # one patient at two hospitals
    (tmp_path / "studies" / "one" / "images" / "cut.dcm").write_bytes(b"no image")
    first = next(iter(sorted(source.iterdir())))
    shutil.copy(first, first.with_name("twice.dcm"))
    code, out, err = drafted(Path("studies"), capsys)
    assert code == Exit.OK
    for doubt in ("1 patients lie in several hospitals' folders", "1 files cannot be read"):
        assert doubt in err and doubt in out
    assert "images occur twice" in err


def test_images_that_the_draft_does_not_read_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    phantom(tmp_path / "studies")
    _, _, err = drafted(Path("studies"), capsys)
    assert "lie there too" not in err
    for number in range(3):
        (tmp_path / "studies" / f"{number}.jpg").write_bytes(b"\xff\xd8\xff")
    nibabel.save(
        nibabel.Nifti1Image(np.arange(64.0).reshape(4, 4, 4), np.eye(4)), tmp_path / "studies" / "P1_t2.nii.gz"
    )
    (tmp_path / "my.yaml").unlink(missing_ok=True)
    _, out, err = drafted(Path("studies"), capsys)
    for doubt in ("3 pictures lie there too", "1 NIfTI images lie there too"):
        assert doubt in err and doubt in out


def test_diffusion_without_adc_maps_is_fitted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    phantom(tmp_path / "clinic")
    for path in sorted((tmp_path / "clinic" / "images").rglob("*.dcm")):
        for number, b in enumerate((0, 800)):
            dataset = pydicom.dcmread(path)
            dataset.ImageType = ["ORIGINAL", "PRIMARY", "DIFFUSION", "NONE"]
            dataset.SeriesDescription = "ep2d diff"
            dataset.add_new("DiffusionBValue", "FD", float(b))
            dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = (
                f"{dataset.SOPInstanceUID[:60]}.{number}"
            )
            dataset.save_as(path.with_name(f"{path.stem}_{b}.dcm"))
        path.unlink()
    assert drafted(Path("clinic"), capsys, "--out", "my.yaml")[0] == Exit.OK
    assert load_config("my.yaml").sites["clinic"].source.derive == "adc"


def test_nifti_files_of_several_kinds_are_told_apart_by_their_last_word(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    for patient in ("A1", "A2", "A3"):
        for word in ("adc", "t2"):
            values = draws.uniform(500, 2000, (8, 8, 4)).astype(np.float32)
            (tmp_path / "clinic").mkdir(exist_ok=True)
            nibabel.Nifti1Image(values, np.eye(4)).to_filename(tmp_path / "clinic" / f"{patient}_{word}.nii.gz")
        mask = np.zeros((8, 8, 4), np.uint8)
        mask[2:4, 2:4, 1] = 1
        nibabel.Nifti1Image(mask, np.eye(4)).to_filename(tmp_path / "clinic" / f"{patient}_lesion.nii.gz")
    assert drafted(Path("clinic"), capsys, "--out", "my.yaml")[0] == Exit.OK
    site = load_config("my.yaml").sites["clinic"]
    assert (site.source.pattern, site.source.patient) == ("*_adc.nii.gz", "^(.+)_adc$")
    assert site.labels.pattern == "{patient}_lesion.nii.gz"


@pytest.mark.parametrize(("made", "told"), [("empty", "holds no DICOM"), ("file", "is a file"), ("", "does not exist")])
def test_a_folder_without_images_is_said_to_be_one(tmp_path, capsys, made, told):
    place = tmp_path / "place"
    if made == "empty":
        place.mkdir()
    elif made == "file":
        place.touch()
    code, out, err = drafted(place, capsys)
    assert (code, out) == (Exit.DATA, "") and told in err


def test_a_folder_that_may_not_be_read_is_said_to_be_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
    code, out, err = drafted(tmp_path, capsys)
    assert (code, out) == (Exit.DATA, "") and "may not be read" in err


def test_an_existing_file_is_not_written_over(tmp_path, capsys):
    (tmp_path / "my.yaml").write_text("precious")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), "--out", str(tmp_path / "my.yaml")])
    assert ended.value.code == Exit.CONFIG and (tmp_path / "my.yaml").read_text() == "precious"


def test_real_dicom_of_two_patients_gets_its_adc_its_masks_and_its_names(data, tmp_path, monkeypatch, capsys):
    if not (data / "prostatex").is_dir():
        pytest.skip(f"no ProstateX below {data}")
    monkeypatch.chdir(tmp_path)
    code, _, err = drafted(data / "prostatex", capsys, "--out", "my.yaml")
    assert code == Exit.OK and "-0000" not in err + Path("my.yaml").read_text()
    site = load_config("my.yaml").sites["prostatex"]
    assert dict(site.source.select) == {"kind": "adc"}
    shipped = yaml.safe_load((Path(main.__globals__["__file__"]).parent / "configs" / "prostatex.yaml").read_text())
    wanted = shipped["sites"]["prostatex"]
    for found, group in ((site.labels, wanted["labels"]), (site.gland, wanted["gland"])):
        plain = dataclasses.asdict(found)
        assert plain["folder"].endswith(group["folder"].partition("}")[2])
        assert plain["names"].endswith(group["names"].partition("}")[2])


def test_pictures_with_a_table_become_a_site_for_each_source(data, tmp_path, monkeypatch, capsys):
    if not (data / "ham10000").is_dir():
        pytest.skip(f"no pictures below {data}")
    monkeypatch.chdir(tmp_path)
    assert drafted(data / "ham10000", capsys, "--out", "my.yaml")[0] == Exit.OK
    config = load_config("my.yaml")
    assert set(config.sites) == {"rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"}
    assert all(dict(site.source.where) == {"site": (name,)} for name, site in config.sites.items())
    assert "HAM_0" not in Path("my.yaml").read_text()


@pytest.mark.parametrize("missing", ["patient", "label", ""])
def test_a_draft_of_pictures_that_is_not_filled_in_does_not_pass_check(missing, tmp_path, monkeypatch, capsys):
    """Without the column of patients, or of labels, the draft says FILL IN, and --check names the column."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pictures"
    folder.mkdir()
    columns = [name for name in ("image", "patient", "label") if name != missing]
    rows = []
    for number in range(16):
        Image.new("RGB", (16, 16), (number, 9, 9)).save(folder / f"{number}.png")
        row = {"image": f"{number}.png", "patient": f"p{number}", "label": str(number % 2)}
        rows.append(",".join([*(row[name] for name in columns), f"note {number}"]))
    (folder / "table.csv").write_text("\n".join([",".join([*columns, "note"]), *rows]) + "\n")
    code, _, _ = drafted(folder, capsys, "--out", "my.yaml")
    assert (code == Exit.OK) == (not missing) and ("FILL IN" in Path("my.yaml").read_text()) == bool(missing)
    assert (run_main(["my.yaml", "--check"]) == Exit.OK) == (not missing)
    assert not missing or f"no column {missing}" in capsys.readouterr().err


def test_a_line_that_says_the_separator_is_no_column(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = phantom(tmp_path / "p", patients=4)
    table = folder / "labels.csv"
    table.write_text("sep=;\r\n" + table.read_text().replace(",", ";"))
    shutil.rmtree(folder / "masks" / "lesion", ignore_errors=True)
    assert drafted(folder, capsys, "--out", "my.yaml")[0] == Exit.OK
    text = Path("my.yaml").read_text()
    assert "sep=" not in text and "patient: patient" in text


def test_odd_real_files_give_a_marked_draft_and_no_failure(data, tmp_path, monkeypatch, capsys):
    if not (data / "dicom_zoo").is_dir():
        pytest.skip(f"no odd files below {data}")
    monkeypatch.chdir(tmp_path)
    code, out, _ = drafted(data / "dicom_zoo", capsys)
    assert code == Exit.DATA and "labels: FILL IN" in out
    people = {str(pydicom.dcmread(path, force=True).get("PatientName", "")) for path in data.glob("phi/**/*.dcm")}
    code, out, err = drafted(data / "phi", capsys)
    names = [name for person in people for name in person.split("^") if len(name) > 3]
    assert not [name for name in names if name.lower() in (out + err).lower()]


def test_words_of_the_field_are_shown_and_others_are_not():
    assert known_words("ep2d_diff_tra MILLER b800 MILLER JOHN adc") == "ep2d diff tra … b800 … adc"
    secrets = secrets_of({"STUDY-0001", "STUDY-0002"}, {"Miller^John"})
    assert secrets.tells("of miller") and secrets.tells("0001") and secrets.tells("xmillerx")
    assert not secrets.tells("study.csv") and not secrets.tells("SIEMENS 3.0 T")


def test_a_folder_whose_name_is_not_utf8_is_told(tmp_path, capsys):
    write(PhantomSource(kind="phantom", scanner="L", patients=2, seed=2, slices=4, format="nifti"), tmp_path / "p")
    odd = os.path.join(os.fsencode(tmp_path), b"Stra\xdfe")
    os.mkdir(odd)
    os.rename(os.path.join(os.fsencode(tmp_path), b"p", b"images"), os.path.join(odd, b"images"))
    assert main([os.fsdecode(odd)]) == Exit.DATA
    assert "not UTF-8" in capsys.readouterr().err


def test_a_certain_table_goes_before_masks_that_do_not_say_of_what(tmp_path, capsys):
    write(PhantomSource(kind="phantom", scanner="L", patients=4, seed=2, slices=4, format="nifti"), tmp_path / "p")
    (tmp_path / "p" / "masks" / "gland").rename(tmp_path / "p" / "shapes")
    shutil.rmtree(tmp_path / "p" / "masks")
    assert main([str(tmp_path / "p")]) == Exit.OK
    text = capsys.readouterr().out
    labels = yaml.safe_load(text)["sites"]
    (site,) = labels.values()
    assert (site["labels"]["kind"], site["labels"]["label"]) == ("table", "label")


def test_two_endings_in_one_folder_are_a_doubt_and_not_half_a_hospital(tmp_path, capsys):
    write(PhantomSource(kind="phantom", scanner="L", patients=4, seed=2, slices=4, format="nifti"), tmp_path / "p")
    first = sorted((tmp_path / "p" / "images").iterdir())[0]
    nibabel.save(nibabel.load(first), str(first).removesuffix(".gz"))
    first.unlink()
    assert main([str(tmp_path / "p")]) == Exit.DATA
    assert "several endings" in " ".join(capsys.readouterr().err.split())


def test_bids_subjects_are_patients_and_the_draft_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    for subject in range(6):
        for session in ("ses-01", "ses-02"):
            folder = tmp_path / "clinic" / f"sub-{subject:02d}" / session
            folder.mkdir(parents=True)
            for suffix in ("adc", "T2w", "dwi"):
                values = draws.uniform(500, 2000, (16, 16, 4)).astype(np.float32)
                image = nibabel.Nifti1Image(values, np.diag([2.0, 2, 4, 1]))
                image.to_filename(folder / f"sub-{subject:02d}_{session}_{suffix}.nii.gz")
    table = "participant_id,cancer\n" + "".join(f"sub-{subject:02d},{subject % 2}\n" for subject in range(6))
    (tmp_path / "clinic" / "labels.csv").write_text(table)
    assert drafted(Path("clinic"), capsys, "--out", "my.yaml")[0] == Exit.OK
    site = load_config("my.yaml").sites["clinic"]
    assert (site.source.pattern, site.source.patient) == ("*_adc.nii.gz", None)
    assert site.labels.patient == "participant_id"
    assert run_main(["my.yaml", "--check"]) == Exit.OK
    assert "12" in (tmp_path / "my.yaml").read_text()  # studies of 6 patients


def test_files_that_nobody_calls_adc_need_a_word(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clinic").mkdir()
    for patient in ("A1", "A2", "A3"):
        values = np.random.default_rng(1).uniform(500, 2000, (8, 8, 4)).astype(np.float32)
        nibabel.Nifti1Image(values, np.eye(4)).to_filename(tmp_path / "clinic" / f"{patient}.nii.gz")
    drafted(Path("clinic"), capsys, "--out", "my.yaml")
    assert "FILL IN: nothing says that these files are ADC maps" in (tmp_path / "my.yaml").read_text()


NO_SECRETS = secrets_of(["MEIER"])


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6, unique=True))
def test_sites_have_valid_names_each_once_and_say_where_they_differ(texts):
    found = site_names(texts, NO_SECRETS)
    names = [name for name, _ in found]
    assert len(set(names)) == len(texts) and all(is_name(name) and name not in RESERVED for name in names)
    for text, (name, doubt) in zip(texts, found, strict=True):
        assert bool(doubt) == (name != text)
        assert "meier" not in doubt.lower() and doubt.isprintable()


def test_a_site_that_is_called_otherwise_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in ((1, "St. Mary's"), (2, "north")):
        phantom(tmp_path / "studies" / name, seed=seed)
    _, out, err = drafted(Path("studies"), capsys)
    assert list(yaml.safe_load(out)["sites"]) == ["st_mary_s", "north"]
    assert 'the site st_mary_s stands for "St. Mary\'s"' in out and "the site st_mary_s stands for" in err
    assert "the site north" not in out


def test_values_of_a_table_that_would_be_one_name_are_two_sites(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "skin"
    folder.mkdir()
    lines = ["image,patient,site,label"]
    for number in range(8):
        Image.fromarray(np.full((32, 32, 3), 20 * number, np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,p{number},{'A b' if number % 2 else 'a-b' if number < 4 else 'a b'},{number // 4}")
    (folder / "table.csv").write_text("\n".join(lines))
    _, out, _ = drafted(folder, capsys)
    assert len(yaml.safe_load(out)["sites"]) == 3


@pytest.mark.parametrize(
    ("texts", "classes", "values"),
    [
        (("nv", "MEL", "bcc"), ["bcc", "mel", "nv"], None),
        (("10", "9", "8"), ["8", "9", "10"], None),
        (
            ("In situ", "nevus", "BCC"),
            ["bcc", "in_situ", "nevus"],
            {"BCC": "bcc", "In situ": "in_situ", "nevus": "nevus"},
        ),
    ],
)
def test_a_column_of_diagnoses_is_a_task_of_named_classes(tmp_path, monkeypatch, capsys, texts, classes, values):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "skin"
    folder.mkdir()
    lines = ["image,patient,dx,age"]
    for number in range(12):
        Image.fromarray(np.full((32, 32, 3), 20 * number, np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,p{number},{texts[number % 3]},{number + 20}")
    (folder / "table.csv").write_text("\n".join(lines))
    code, out, _ = drafted(folder, capsys)
    said = yaml.safe_load(out)
    assert code == Exit.OK and said["task"] == {"kind": "classification", "classes": classes}
    (site,) = said["sites"].values()
    assert site["source"]["label"] == "dx" and site["source"].get("values") == values
    Path("my.yaml").write_text(out)
    assert load_config("my.yaml").task.names == tuple(classes)


def test_columns_of_0_and_1_are_a_task_of_several_findings_that_runs_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "chest"
    folder.mkdir()
    lines = ["image,patient,age,Edema,Pleural Effusion,nodule"]
    for number in range(30):
        Image.fromarray(np.full((32, 32), 8 * number, np.uint8)).save(folder / f"{number}.png")
        findings = [str(number % 2), ("0.0", "1.0", "-1")[number % 3], ("0", "", "1")[number % 3]]
        lines.append(f"{number}.png,p{number},{number + 20}," + ",".join(findings))
    (folder / "table.csv").write_text("\n".join(lines))
    code, out, _ = drafted(folder, capsys)
    said = yaml.safe_load(out)
    assert code == Exit.OK and said["task"] == {"kind": "findings", "findings": ["edema", "pleural_effusion", "nodule"]}
    (site,) = said["sites"].values()
    assert site["source"]["findings"] == {"edema": "Edema", "pleural_effusion": "Pleural Effusion"}
    assert site["source"]["values"] == {"-1": "unknown"} and "taken for a finding" in out
    Path("my.yaml").write_text(out)
    assert load_config("my.yaml").task.findings == ("edema", "pleural_effusion", "nodule")


def test_drafts_of_different_folders_have_different_runs(tmp_path, monkeypatch, capsys):
    """Their results would lie in one folder, and the later ones replace the earlier ones."""
    monkeypatch.chdir(tmp_path)
    runs = []
    for parent in ("a", "b"):
        phantom(tmp_path / parent / "clinic")
        _, out, _ = drafted(Path(parent, "clinic"), capsys)
        _, again, _ = drafted(Path(parent, "clinic"), capsys)
        assert again == out
        runs.append(yaml.safe_load(out)["name"])
    assert len(set(runs)) == 2 and all(is_name(run) for run in runs)
