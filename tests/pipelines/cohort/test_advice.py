"""A table of causes: each ends in the reason and the advice that fit it, and in no words of a programming language."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import UID
from small_series import Series, everywhere

from pipelines.data.dicom.reader import index_dicom
from pipelines.data.examples import open_source
from pipelines.data.images import Slices
from pipelines.data.index import convert_read_errors, load_all
from pipelines.data.labels import Table, find_mask, open_masks, open_table, table_labels
from pipelines.data.sources import DicomSource, MaskLabels, TableLabels
from pipelines.data.study import Unusable
from pipelines.init import main

PLAIN = Slices(spacing_mm=2.0, size=8, slices="all", values="standardized")
PYTHON = ("could not convert", "invalid literal", "Error", "Exception", "NoneType")


def dynamic(folder: Path, counts: tuple[int, ...]) -> None:
    """Slice k is there `counts[k]` times, each time as another image."""
    for time in range(max(counts)):

        def at_time(index: int, dataset: Dataset, time: int = time) -> None:
            dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.4.{index + 1}.{time + 1}"

        Series(change=at_time, slices=len(counts)).write(folder / str(time))
        for index, count in enumerate(counts):
            if time >= count:
                (folder / str(time) / f"{index:03d}.dcm").unlink()


def of_class(sop_class: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        Series(change=everywhere(SOPClassUID=UID(sop_class), NumberOfFrames=3)).write(folder)

    return write


CAUSES: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    # cause: the folder, the reason, words that must be in the advice, words that must not
    "dynamic": (lambda folder: dynamic(folder, (3, 3, 3, 3)), "several_volumes", "Narrow `select`", "copies"),
    "dynamic, one lost": (lambda folder: dynamic(folder, (3, 3, 2, 3)), "several_volumes", "whole series", "copies"),
    "dynamic, ends lost": (lambda folder: dynamic(folder, (3, 3, 3, 1)), "several_volumes", "whole series", "copies"),
    "one copy": (
        lambda folder: dynamic(folder, (1, 1, 2, 1, 1)),
        "duplicate_slice",
        "Remove the copies",
        "whole series",
    ),
    "RT dose": (of_class("1.2.840.10008.5.1.4.1.1.481.2"), "not_an_image", "RT Dose", "Enhanced MR"),
    "MR, many frames": (of_class("1.2.840.10008.5.1.4.1.1.4"), "multi_frame", "Enhanced MR", "Narrow"),
    "CT, many frames": (of_class("1.2.840.10008.5.1.4.1.1.2"), "multi_frame", "Enhanced CT", "MR"),
    "PET, many frames": (of_class("1.2.840.10008.5.1.4.1.1.128"), "multi_frame", "Enhanced PET", "MR"),
    "ultrasound film": (of_class("1.2.840.10008.5.1.4.1.1.3.1"), "multi_frame", "Narrow `select`", "Enhanced"),
    "angiography": (of_class("1.2.840.10008.5.1.4.1.1.12.1"), "multi_frame", "Narrow `select`", "Enhanced"),
    "captures, many frames": (
        of_class("1.2.840.10008.5.1.4.1.1.7.2"),
        "multi_frame",
        "from which it was made",
        "Enhanced",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_the_reason_and_the_advice_that_fit_it(tmp_path: Path, cause: str) -> None:
    write, reason, words, never = CAUSES[cause]
    write(tmp_path)
    _, rejected = load_all(index_dicom(DicomSource(folder=str(tmp_path))))
    assert [one.reason for one in rejected] == [reason]
    detail = rejected[0].detail
    assert words in detail and never not in detail and not any(word in detail for word in PYTHON)


@pytest.mark.parametrize("parse", [float, int])
@pytest.mark.parametrize("text", ["1,5", "12 mm", "", "1.234,5"])
def test_a_text_that_is_no_number_is_told_in_words(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(Unusable) as told, convert_read_errors("a.dcm"):
        parse(text)
    assert told.value.reason == "unreadable" and repr(text) in told.value.detail
    assert not any(word in told.value.detail for word in PYTHON)
    assert ("not a comma" in told.value.detail) == ("," in text)


def test_a_decimal_comma_in_a_header_is_told_in_words(tmp_path: Path) -> None:
    Series().write(tmp_path)
    path = tmp_path / "002.dcm"
    assert path.read_bytes().count(b"1.5") == 1
    path.write_bytes(path.read_bytes().replace(b"1.5", b"1,5"))
    _, rejected = load_all(index_dicom(DicomSource(folder=str(tmp_path))))
    details = " ".join(one.detail for one in rejected)
    assert "'1,5'" in details and "not a comma" in details and not any(word in details for word in PYTHON)


@pytest.mark.parametrize(
    ("known", "patient", "words"),
    [
        ("00123", "123", "leading zeros"),
        ("123", "00123", "leading zeros"),
        ("p-7", "P7", "case, spaces or punctuation"),
        ("P 007", "P_007", "case, spaces or punctuation"),
        ("124", "123", ""),
    ],
)
def test_an_identifier_that_was_written_otherwise_is_named(
    tmp_path: Path, known: str, patient: str, words: str
) -> None:
    (tmp_path / "labels.csv").write_text(f"patient,label\n{known},1\n")
    table = open_table(TableLabels(file=str(tmp_path / "labels.csv")))
    assert isinstance(table, Table)
    with pytest.raises(Unusable) as no_line:
        table_labels(table, patient, "s", [0], alone=True)
    (tmp_path / "names.csv").write_text(f"patient,file\n{known},mask\n")
    masks = open_masks(MaskLabels(folder=str(tmp_path), names=str(tmp_path / "names.csv")), "labels")
    with pytest.raises(Unusable) as no_name:
        find_mask(masks, patient, missing="no_label")
    for told in (no_line.value, no_name.value):
        assert told.reason == "no_label" and words in told.detail
        assert (repr(known) in told.detail) == bool(words)


def packed(folder: Path, kind: str) -> Path:
    name = folder / f"P1.{kind}"
    data = io.BytesIO()
    Series().dataset(0).save_as(data, enforce_file_format=True)
    if kind == "zip":
        with zipfile.ZipFile(name, "w") as file:
            file.writestr("a.dcm", data.getvalue())
    elif kind in ("dcm.gz", "bz2"):
        import bz2

        name.write_bytes((gzip if kind == "dcm.gz" else bz2).compress(data.getvalue()))
    else:
        with tarfile.open(name, "w:gz" if kind.endswith("gz") else "w") as file:
            found = tarfile.TarInfo("a.dcm")
            found.size = len(data.getvalue())
            file.addfile(found, io.BytesIO(data.getvalue()))
    return name


@pytest.mark.parametrize("kind", ["zip", "dcm.gz", "tar", "tar.gz", "tgz", "bz2"])
def test_init_says_that_files_are_packed(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    packed(tmp_path, kind)
    main([str(tmp_path)])
    told = " ".join(capsys.readouterr().err.split())
    assert "1 files are packed" in told and "unpack them" in told


def test_two_maps_of_one_study_are_scored_in_a_folder_as_each_alone_at_night(tmp_path: Path) -> None:
    for number in range(3):
        series = Series(series=f"1.2.3.{number}", extra={"SeriesDescription": f"ADC {number}"})
        series.write(tmp_path / "all" / str(number))
        series.write(tmp_path / f"alone{number}" / str(number))

    def scored(folder: Path) -> dict[str, bytes]:
        opened = open_source(DicomSource(folder=str(folder)), None, PLAIN, None)
        assert opened.rejected == ()
        return {one.study: np.asarray(one.read().examples.images).tobytes() for one in opened.waiting}

    together = scored(tmp_path / "all")
    assert len(together) == 3
    assert together == {study: x for number in range(3) for study, x in scored(tmp_path / f"alone{number}").items()}
    (tmp_path / "labels.csv").write_text("patient,label\nMiller 7,1\n")
    labels = TableLabels(file=str(tmp_path / "labels.csv"))
    learnt = open_source(DicomSource(folder=str(tmp_path / "all")), labels, PLAIN, None)
    assert [one.reason for one in learnt.rejected] == ["ambiguous"] * 3 and not learnt.waiting
