"""The law of accounts: files = used + quarantined + not selected + not imaging, whatever lies in a folder."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from small_series import SLICES, Series, everywhere

from pipelines.data.accounts import (
    Account,
    account_facts,
    count_outcomes,
    describe_outcomes,
    format_accounts_csv,
    list_accounts,
    list_unused_patients,
    reject_unserved_patients,
)
from pipelines.data.cohort import read_cohort
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.examples import open_source
from pipelines.data.folder import walk_folder
from pipelines.data.images import AnyImages, Features, Pictures, Slices
from pipelines.data.intake import Intake, ReadStudy, read_studies
from pipelines.data.pictures.reader import open_loose_pictures
from pipelines.data.sources import DicomSource, Files, NiftiSource, PictureMasks, PictureSource, TableSource
from pipelines.data.study import Rejected

PLAIN = Slices(slices="all", values="standardized", size=16)
Maker = Callable[[Path, int], None]
"""Puts something into a folder; the number makes it differ from others."""


def series(folder: Path, number: int, kind: str = "ADC", slices: int = SLICES) -> None:
    uid = f"1.2.{number}"
    change = everywhere(ImageType=["DERIVED", "PRIMARY", kind], SeriesDescription=f"{kind} tra")
    Series(f"P{number}", uid, f"{uid}.1", change, slices).write(folder / f"s{number}")


def headless(folder: Path, number: int, *, meta: bool = False, implicit: bool = True) -> Path:
    """A series without preamble and mark, and without meta information too."""
    home = folder / f"headless{number}"
    home.mkdir(parents=True)
    uid = f"1.3.{number}"
    syntax = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian
    for index in range(SLICES):
        made = Series(f"H{number}", uid, f"{uid}.1", everywhere(SeriesDescription="ADC")).dataset(index)
        made.file_meta.TransferSyntaxUID = syntax
        path = home / (f"{index}" if number % 2 else f"{index}.dcm")
        made.save_as(path, enforce_file_format=True)
        data = path.read_bytes()[132:]
        path.write_bytes(data if meta else data[12 + int.from_bytes(data[8:12], "little") :])
    return home


def nifti(folder: Path, number: int, name: str = "{}_adc.nii.gz", cut: int = 0) -> None:
    path = folder / name.format(f"n{number}")
    values = np.random.default_rng(number).integers(500, 2000, (8, 8, 4)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 2, 3, 1])), path)
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])


def picture(folder: Path, number: int) -> None:
    Image.fromarray(np.full((9, 9), number % 250, np.uint8)).save(folder / f"p{number}.png")


def written(name: str, data: bytes) -> Maker:
    def make(folder: Path, number: int) -> None:
        path = folder / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return make


def packed(folder: Path, number: int) -> None:
    series(folder / "x", number, slices=1)
    path = next((folder / "x").rglob(f"s{number}/*.dcm"))
    (folder / f"{number}.dcm.gz").write_bytes(gzip.compress(path.read_bytes()))
    shutil.rmtree(folder / "x")


def archive(folder: Path, number: int) -> None:
    with zipfile.ZipFile(folder / f"{number}.zip", "w") as file:
        file.writestr("a.dcm", b"x")


def damaged(folder: Path, number: int) -> None:
    series(folder, number)
    path = folder / f"s{number}" / "001.dcm"
    path.write_bytes(path.read_bytes()[: 140 + 37 * (number % 9)])


def copied(folder: Path, number: int) -> None:
    series(folder, number)
    shutil.copy(folder / f"s{number}" / "000.dcm", folder / f"s{number}" / "copy.dcm")


def linked(target: str) -> Maker:
    def make(folder: Path, number: int) -> None:
        os.symlink(target, folder / f"link{number}.dcm")

    return make


def pipe(folder: Path, number: int) -> None:
    os.mkfifo(folder / f"{number}.dcm")


def listening(folder: Path, number: int) -> None:
    name = os.getcwd()
    os.chdir(folder)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"{number}.sock")
    finally:
        os.chdir(name)


MAKERS: dict[str, Maker] = {
    "adc": series,
    "t2": lambda folder, number: series(folder, number, "T2"),
    "headless": lambda folder, number: (headless(folder, number), None)[1],
    "nifti": nifti,
    "other name": lambda folder, number: nifti(folder, number, "{}_t2.nii"),
    "broken nifti": lambda folder, number: nifti(folder, number, cut=9),
    "picture": picture,
    "damaged": damaged,
    "copied": copied,
    "empty": written("{}", b""),
    "empty dicom": written("{}.dcm", b""),
    "letter": written("letter{}.txt", b"Dear colleague, " * 20),
    "hidden": written(".{}.dcm", b"x"),
    "hidden folder": written(".git{}/a/b", b"x"),
    "packed": packed,
    "archive": archive,
    "lone gz": written("{}.gz", gzip.compress(b"a,b\n1,2\n")),
    "damaged gz": written("{}.nii.gz", b"\x1f\x8b\x08 no more"),
    "link inside": linked("anchor/000.dcm"),
    "link outside": linked("/etc/hostname"),
    "link to nothing": linked("nowhere"),
    "link to nothing elsewhere": linked("/nowhere/000.dcm"),
    "link to a folder": linked("/etc"),
    "pipe": pipe,
    "socket": listening,
}


def names_below(folder: Path, inner: str = "") -> list[str]:
    """Every name that must be accounted for, found by another way than the reader's: what is no link to a file below,
    a hidden folder as a whole.
    """
    found = []
    for entry in os.scandir(folder / inner):
        name = f"{inner}{entry.name}"
        real = Path(os.path.realpath(entry.path))
        inside = real.is_relative_to(folder.resolve())
        if entry.is_symlink() and real.is_dir():
            found += [] if inside else [f"{name}/"]
        elif entry.is_dir(follow_symlinks=False):
            found += [f"{name}/"] if entry.name.startswith(".") else names_below(folder, f"{name}/")
        elif not (entry.is_symlink() and inside and real.is_file() and not entry.name.startswith(".")):
            found.append(name)
    return sorted(found)


def law(opened: Intake) -> tuple[tuple[Account, ...], list[ReadStudy]]:
    """Holds of whatever was opened: four classes, their sum, and each is what it says."""
    results = list(read_studies(opened.waiting, readers=1))
    refused = [*opened.rejected, *(one for one in results if isinstance(one, Rejected))]
    used = [one for one in results if isinstance(one, ReadStudy)]
    accounts = list_accounts(opened.items, refused)
    assert sum(count_outcomes(accounts).values()) == len(accounts) == len(opened.items)
    facts = account_facts(accounts)
    four = ("used_files", "quarantined_files", "unselected_files", "ignored_files")
    assert facts["files"] == sum(int(str(facts[name])) for name in four)
    assert max(Counter(one.file for one in accounts).values(), default=1) == 1
    assert {one.study for one in accounts if one.what == "used"} == {one.study for one in used}
    told = {(one.study, one.reason) for one in refused}
    assert {(one.study, one.reason) for one in accounts if one.what == "quarantined"} <= told
    assert {one.study for one in refused} <= {study for item in opened.items for study in item.studies}
    assert all(one.reason.isidentifier() and len(one.detail) > 10 for one in accounts if one.what != "used")
    # A patient who is in the files is used, in the quarantine, or named there as one of whom nothing was selected.
    known = {one.patient for one in accounts if one.patient}
    gone = {one.patient for one in accounts if one.what == "quarantined" and one.patient}
    named = {one.study.removeprefix("patient ") for one in reject_unserved_patients(accounts)}
    assert known == {one.patient for one in accounts if one.what == "used" and one.patient} | gone | named
    assert not named & ({one.patient for one in used} | gone)
    assert str(len(accounts)) in describe_outcomes(accounts)
    assert format_accounts_csv(accounts).count(b"\n") >= len(accounts) + 1
    return accounts, used


def test_a_link_to_nothing_is_told_as_that_wherever_it_leads(tmp_path: Path) -> None:
    for number, target in enumerate(("nowhere", "/nowhere/000.dcm", "/etc/hostname")):
        linked(target)(tmp_path, number)
    reasons = [item.reason for item in walk_folder(tmp_path).left]
    assert reasons == ["broken_link", "broken_link", "link_outside"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(sorted(MAKERS)), st.sampled_from(["", "a/", "a/b/"])), max_size=7))
def test_every_file_of_any_folder_is_of_one_class(tmp_path: Path, made: Sequence[tuple[str, str]]) -> None:
    folder = tmp_path / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    series(folder, 0)
    (folder / "s0").rename(folder / "anchor")
    nifti(folder, 0)
    picture(folder, 0)
    for number, (what, where) in enumerate(made, start=1):
        (folder / where).mkdir(parents=True, exist_ok=True)
        MAKERS[what](folder / where, number)
    expected = names_below(folder)
    (tmp_path / "table.csv").write_text("image,patient,label\np0.png,A,0\ngone.png,B,1\n")
    sources: list[tuple[Files, AnyImages]] = [
        (DicomSource(folder=str(folder), select={"ImageType": "ADC"}), PLAIN),
        (DicomSource(folder=str(folder)), PLAIN),
        (NiftiSource(folder=str(folder), pattern="*_adc.nii.gz", patient="^(n[0-9]+)_"), PLAIN),
        (PictureSource(folder=str(folder), table=str(tmp_path / "table.csv")), Pictures(size=8)),
    ]
    for source, images in sources:
        opened = open_source(source, None, images, None)
        lines = ["line 2: gone.png"] if isinstance(source, PictureSource) else []
        assert sorted(item.name for item in opened.items) == sorted([*expected, *lines])
        law(opened)
    opened = open_loose_pictures(str(folder), Pictures(size=8))
    assert sorted(item.name for item in opened.items) == expected
    law(opened)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["1,0,a", "2,1,b", "x,1,a", "3", '"open', ",1,a", "4,1,a,9"]), min_size=1, max_size=9))
def test_every_line_of_any_table_is_of_one_class(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["age,ill,site", "5,1,a", *lines]))
    source = TableSource(file=str(tmp_path / "t.csv"), label="ill", where={"site": ("a",)})
    opened = open_source(source, None, Features(numbers=("age",)), None)
    accounts, used = law(opened)
    assert (opened.of, len(accounts)) == ("lines", 1 + len(lines))
    assert len(used) == 1 + lines.count("1,0,a")
    others = sum(line in ("2,1,b", "3") for line in lines)
    assert count_outcomes(accounts)["not_selected"] == others


EVERYTHING, ADC, T2 = {}, {"ImageType": "ADC"}, {"SeriesDescription": "t2"}
OFTEN = [("prostatex", ADC), ("prostatex", T2), ("dicom_zoo", EVERYTHING), ("phi", EVERYTHING)]
SELDOM = [("prostatex", EVERYTHING), *((name, one) for name in ("dicom_zoo", "phi") for one in (ADC, T2))]


@pytest.mark.parametrize(("name", "select"), [*OFTEN, *(pytest.param(*one, marks=pytest.mark.slow) for one in SELDOM)])
def test_every_real_file_is_of_one_class(data: Path, name: str, select: dict[str, str]) -> None:
    try:
        opened = open_source(DicomSource(folder=str(data / name), select=select), None, PLAIN, None)
    except ValueError as error:  # not silently either
        assert f"matches select ({', '.join(select)})" in str(error)  # noqa: PT017
        return
    assert sorted(item.name for item in opened.items) == names_below(data / name)
    accounts, _ = law(opened)
    assert all(one.patient for one in accounts if one.what == "used")


def test_a_patient_of_whom_nothing_is_selected_is_named_with_what_he_has(tmp_path: Path) -> None:
    series(tmp_path, 1)
    series(tmp_path, 2, "T2")
    series(tmp_path, 3)
    (tmp_path / "s3" / "001.dcm").unlink()
    opened = open_source(DicomSource(folder=str(tmp_path), select={"ImageType": "ADC"}), None, PLAIN, None)
    accounts, _ = law(opened)
    assert list_unused_patients(accounts) == ["P2", "P3"]
    (named,) = reject_unserved_patients(accounts)
    assert (named.study, named.reason) == ("patient P2", "nothing_selected")
    assert "T2 tra" in named.detail and "ImageType: ADC" in named.detail and "T2" in named.detail
    assert count_outcomes(accounts) == {
        "used": SLICES,
        "quarantined": SLICES - 1,
        "not_selected": SLICES,
        "not_imaging": 0,
    }
    assert describe_outcomes(accounts).endswith("! Patients of whom nothing was used: 2.")


def test_patients_who_are_left_out_on_purpose_are_not_missed(tmp_path: Path) -> None:
    for number in range(4):
        series(tmp_path, number)
    shares = {"train": 0.5, "validation": 0.0, "test": 0.5}
    source = DicomSource(folder=str(tmp_path))
    read = read_cohort(source, None, PLAIN, fractions=shares, seed=0, key=b"k" * 16, exclude=("P1",))
    assert count_outcomes(read.accounts) == {
        "used": 3 * SLICES,
        "quarantined": 0,
        "not_selected": SLICES,
        "not_imaging": 0,
    }
    assert {one.reason for one in read.accounts} == {"", "excluded"}
    assert not reject_unserved_patients(read.accounts)
    assert (read.facts["files"], read.facts["unselected_files"]) == (4 * SLICES, SLICES)


@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("implicit", [True, False])
@pytest.mark.parametrize("number", [2, 3])
def test_dicom_without_preamble_is_read_as_with_it(tmp_path: Path, number: int, meta: bool, implicit: bool) -> None:
    headless(tmp_path, number, meta=meta, implicit=implicit)
    (candidate,) = index_dicom(DicomSource(folder=str(tmp_path))).candidates
    values = candidate.load().image.values
    assert (candidate.patient, values[1, 2, 3]) == (f"H{number}", 321)


def test_a_text_that_begins_like_no_dicom_is_no_dicom(tmp_path: Path) -> None:
    series(tmp_path, 1)
    for number, start in enumerate((b"\x08\x00", b"\x08\x00\x05\x00CS", b"\x02\x00\x10\x00UI\x04\x001.2\x00", b"8")):
        (tmp_path / f"{number}").write_bytes(start + b"and nothing that DICOM has" * 20)
    index = index_dicom(DicomSource(folder=str(tmp_path)))
    assert len(index.candidates) == 1
    assert sum(item.state == "part" for item in index.items) - len(index.rejected) == SLICES


def test_packed_and_foreign_files_are_named_with_a_remedy(tmp_path: Path) -> None:
    series(tmp_path, 1)
    packed(tmp_path, 2)
    nifti(tmp_path, 3)
    picture(tmp_path, 4)
    archive(tmp_path, 5)
    opened = open_source(DicomSource(folder=str(tmp_path)), None, PLAIN, None)
    accounts, _ = law(opened)
    told = {one.file: (one.what, one.reason) for one in accounts if one.what != "used"}
    assert told == {
        "2.dcm.gz": ("quarantined", "packed"),
        "n3_adc.nii.gz": ("not_selected", "other_format"),
        "p4.png": ("not_selected", "other_format"),
        "5.zip": ("not_selected", "packed"),
    }
    remedies = {one.file: one.detail for one in accounts}
    assert "gunzip" in remedies["2.dcm.gz"] and "kind nifti" in remedies["n3_adc.nii.gz"]


def test_a_name_that_the_pattern_leaves_out_is_told(tmp_path: Path) -> None:
    nifti(tmp_path, 1, "{}_adc.nii")
    nifti(tmp_path, 2)
    nifti(tmp_path, 1, "{}_t2.nii")
    source = NiftiSource(folder=str(tmp_path), pattern="*_adc.nii", patient="^(n[0-9]+)_")
    accounts, _ = law(open_source(source, None, PLAIN, None))
    assert [(one.file, one.reason) for one in accounts if one.what == "not_selected"] == [
        ("n1_t2.nii", "name_not_selected"),
        ("n2_adc.nii.gz", "name_not_selected"),
    ]
    assert [one.study for one in reject_unserved_patients(accounts)] == ["patient n2"]
    with pytest.raises(ValueError, match=r"matches '\*\.nii2'; 3 NIfTI files have other names"):
        open_source(NiftiSource(folder=str(tmp_path), pattern="*.nii2"), None, PLAIN, None)


def test_pictures_that_no_table_names_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(4):
        picture(folder, number)
    picture(folder, 9)
    (folder / "p9.png").rename(folder / "p0_mask.png")
    lines = ["image,patient,label,site", "p0.png,A,0,x", "p1.png,B,1,y", "gone.png,C,1,x"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    masks = PictureMasks(folder=str(folder), pattern="{stem}_mask.png", values={"disc": (9,)})
    where = {"site": ("x",)}
    source = PictureSource(folder=str(folder), table=str(tmp_path / "t.csv"), where=where, masks=masks)
    accounts, _ = law(open_source(source, None, Pictures(size=8), None))
    assert {one.file: (one.what, one.reason) for one in accounts} == {
        "p0.png": ("used", ""),
        "p0_mask.png": ("used", ""),
        "p1.png": ("not_selected", "line_not_selected"),
        "p2.png": ("not_selected", "not_in_table"),
        "p3.png": ("not_selected", "not_in_table"),
        "line 3: gone.png": ("quarantined", "no_picture"),
    }
