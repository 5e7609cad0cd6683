"""Before training, what is computed about one patient does not change when another comes or goes.

Clipping bounds what a patient adds to a gradient. Whatever else he could do - move others between splits, shift the
mean that they are normalized by - it does not bound, so there must be nothing else. Each test reads a hospital with a
patient, with the patient excluded, and with the patient's files really gone.
"""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.data.cohort import Reading, compute_training_moments, read_cohort
from pipelines.data.images import AnyImages, Features, Pictures, Slices, Volumes
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.sources import (
    DicomSource,
    Files,
    GlandMask,
    MaskLabels,
    NiftiSource,
    PictureSource,
    TableLabels,
    TableSource,
)
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource, patient_name

KEY = b"the secret of a hospital, 32 byt"
SHARES = {"train": 0.5, "validation": 0.2, "test": 0.3}
TENSORS = ("images", "labels", "position", "lesion", "gland", "split")
FEATURES = Features(
    numbers=("age", "st"),
    categories={"pain": ("none", "some", "much")},
    normalize="declared",
    ranges={"age": (20.0, 90.0), "st": (-2.0, 6.0)},
)
again = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(source: Files, images: AnyImages, **options: Any) -> Reading:
    known: dict[str, Any] = {"fractions": SHARES, "seed": 0, "key": KEY, "independent": True, **options}
    return read_cohort(source, known.pop("labels", None), images, **known)


def patients(found: Reading) -> dict[str, tuple[object, ...]]:
    """Patient -> all that the cohort holds of him, in its order and bit for bit."""
    cohort = found.cohort
    kept: dict[str, tuple[object, ...]] = {}
    for number, name in enumerate(cohort.patients):
        rows = (cohort.patient == number).nonzero()[:, 0]
        parts = [getattr(cohort, part)[rows].numpy() for part in TENSORS]
        kept[found.names[name]] = tuple((part.shape, part.dtype.str, part.tobytes()) for part in parts)
    return kept


def without(found: Reading, patient: str) -> dict[str, tuple[object, ...]]:
    return {name: what for name, what in patients(found).items() if name != normalize_identifier(patient)}


# Tables: several lines a patient, in any order, some of them unusable.

NAMES = st.sampled_from(["A", "B", " B", "C 1", "Ü", "D;4", "E,5"])
LINE = st.tuples(
    NAMES,
    st.sampled_from(["55", "20.5", "101", "-3e1", "?", "old", ""]),
    st.sampled_from(["0", "2.5", "9", "NA"]),
    st.sampled_from(["none", "some", "much", "awful"]),
    st.sampled_from(["0", "1", "3", "?"]),
)
TABLE = st.lists(LINE, min_size=2, max_size=14).filter(
    lambda lines: len({normalize_identifier(line[0]) for line in lines}) > 1
)
TESTS = st.lists(st.sampled_from(["A", "B", "C 1", "nobody"]), max_size=2)


def table(path: Path, lines: list[tuple[str, ...]], names: tuple[str, ...]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *lines])
    return path


@again
@given(TABLE, st.integers(0, 2**31), TESTS, st.sampled_from(["declared", "none"]), st.data())
def test_a_line_of_a_table_looks_at_no_other_patient(tmp_path, lines, seed, test, normalize, data):
    images = FEATURES if normalize == "declared" else replace(FEATURES, normalize="none", ranges={})
    one = data.draw(st.sampled_from(sorted({normalize_identifier(line[0]) for line in lines})))
    columns = ("id", "age", "st", "pain", "ill")
    source = TableSource(file=str(table(tmp_path / "all.csv", lines, columns)), patient="id", label="ill")
    rest = [line for line in lines if normalize_identifier(line[0]) != one]
    gone = replace(source, file=str(table(tmp_path / "rest.csv", rest, columns)))
    said = {"seed": seed, "test": tuple(test)}
    wanted = without(read(source, images, **said), one)
    assert patients(read(source, images, exclude=(one,), **said)) == wanted
    assert patients(read(gone, images, **said)) == wanted


@again
@given(st.lists(LINE, min_size=2, max_size=10), st.integers(0, 2**31), st.data())
def test_where_lines_are_patients_excluding_one_changes_no_other(tmp_path, lines, seed, data):
    """Here a patient is the number of a line, so one who goes is excluded: removing the line would rename others."""
    path = table(tmp_path / "all.csv", [line[1:] for line in lines], ("age", "st", "pain", "ill"))
    source = TableSource(file=str(path), label="ill")
    one = str(data.draw(st.integers(1, len(lines))))
    said = {"seed": seed, "test": ("1", "2")}
    wanted = without(read(source, FEATURES, **said), one)
    assert patients(read(source, FEATURES, exclude=(one,), **said)) == wanted


@pytest.mark.parametrize(("independent", "normalize"), [(False, "declared"), (True, "site"), (True, "pooled")])
def test_other_splits_and_other_scales_do_look_at_others_and_that_is_seen(tmp_path, independent, normalize):
    """The control: with any of these, the comparison of these tests finds others changed."""
    rng = np.random.default_rng(0)
    lines = [(f"P{n}", f"{rng.uniform(20, 90):.1f}", "1", "none", str(n % 2)) for n in range(12)]
    columns = ("id", "age", "st", "pain", "ill")
    source = TableSource(file=str(table(tmp_path / "t.csv", lines, columns)), patient="id", label="ill")
    images = FEATURES if normalize == "declared" else replace(FEATURES, normalize=normalize, ranges={})

    def found(**options: Any) -> Reading:
        plain = read(source, images, independent=independent, **options)
        if normalize != "pooled":
            return plain
        return read(source, images, independent=independent, scale=compute_training_moments(plain.cohort), **options)

    whole = found()
    changed = [name for name, *_ in lines if patients(found(exclude=(name,))) != without(whole, name)]
    assert changed


# Lines that nobody can read: each rejects itself.

BROKEN = [
    b'X,"',
    b'Y,1,2,3"',
    b'"Z',
    b'X,"a"b,1,none,1',
    b"X,55,0,none,1,1",
    b"M\xfcller,55,0,none,1",
    b"\xff\xfe",
    b'"',
]


@again
@given(TABLE, st.lists(st.tuples(st.integers(0, 14), st.sampled_from(BROKEN)), min_size=1, max_size=5))
def test_a_line_that_cannot_be_read_changes_no_other_patient(tmp_path, lines, broken):
    """Two quotes that are not closed would also drop, without a word, everybody between them."""
    columns = ("id", "age", "st", "pain", "ill")
    whole = table(tmp_path / "whole.csv", lines, columns)
    raw = whole.read_bytes().splitlines()
    for place, line in broken:
        raw.insert(1 + min(place, len(lines)), line)
    (tmp_path / "broken.csv").write_bytes(b"\r\n".join(raw))
    source = TableSource(file=str(whole), patient="id", label="ill")
    wanted = read(source, FEATURES)
    found = read(replace(source, file=str(tmp_path / "broken.csv")), FEATURES)
    assert {name: what for name, what in patients(found).items() if name not in "XYZ"} == patients(wanted)
    assert len(found.rejected) >= len(wanted.rejected) + sum(line not in (BROKEN[1],) for _, line in broken)


@pytest.mark.parametrize("note", ["1;2;3;4;5;6;7", "\t\t\t\t\t\t\t", "plain"])
def test_in_a_file_without_header_the_first_patient_does_not_choose_the_separator(tmp_path, note):
    lines = [("A", "50", note, "1"), ("B", "60", "", "0"), ("C", "70", "x", "1")]
    images = replace(FEATURES, numbers=("age",), categories={}, normalize="none", ranges={})
    said: dict[str, Any] = {"columns": ("id", "age", "note", "ill"), "patient": "id", "label": "ill"}
    whole = table(tmp_path / "all.csv", lines[1:], lines[0])
    rest = table(tmp_path / "rest.csv", lines[2:], lines[1])
    found = read(TableSource(file=str(whole), **said), images)
    assert len(patients(found)) == 3
    assert without(found, "A") == patients(read(TableSource(file=str(rest), **said), images))


@pytest.mark.parametrize("broken", [b'0.png,"A,1', b"0.png,A,1,1", b"0.png,\xc4,1"])
def test_a_broken_line_of_a_table_of_pictures_changes_no_other_patient(tmp_path, broken):
    for number in range(3):
        Image.fromarray(np.full((9, 9), number, np.uint8)).save(tmp_path / f"{number}.png")
    rest = b"1.png,B,0\n2.png,C,1\n"
    found = []
    for name, lines in (("all.csv", broken + b"\n" + rest), ("rest.csv", rest)):
        (tmp_path / name).write_bytes(b"image,patient,label\n" + lines)
        found.append(read(PictureSource(folder=str(tmp_path), table=str(tmp_path / name)), Pictures(size=8)))
    assert patients(found[0]) == patients(found[1])
    assert [one.study for one in found[0].rejected] == ["line 1"]


# Pictures


@again
@given(
    st.lists(st.tuples(NAMES, st.sampled_from(["0", "1", "x", ""])), min_size=2, max_size=10).filter(
        lambda lines: len({normalize_identifier(line[0]) for line in lines}) > 1
    ),
    st.sets(st.integers(0, 9), max_size=3),
    st.booleans(),
    st.integers(0, 2**31),
    TESTS,
    st.data(),
)
def test_a_picture_looks_at_no_other_patient(tmp_path_factory, lines, damaged, twice, seed, test, data):
    """Damaged files, wrong labels, and one line that is there twice."""
    home = tmp_path_factory.mktemp("pictures")
    named = [(f"{number}.png", name, label) for number, (name, label) in enumerate(lines)]
    for number, (file, *_) in enumerate(named):
        values = np.random.default_rng(number).integers(0, 256, (9, 8 + number, 3), np.uint8)
        Image.fromarray(values).save(home / file)
        if number in damaged:
            (home / file).write_bytes((home / file).read_bytes()[:40])
    named += named[:1] if twice else []
    one = data.draw(st.sampled_from(sorted({normalize_identifier(name) for _, name, _ in named})))
    columns = ("image", "patient", "label")
    source = PictureSource(folder=str(home), table=str(table(home / "all.csv", named, columns)))
    rest = [line for line in named if normalize_identifier(line[1]) != one]
    said = {"seed": seed, "test": tuple(test)}
    images = Pictures(size=8)
    wanted = without(read(source, images, **said), one)
    assert patients(read(source, images, exclude=(one,), **said)) == wanted
    for file in {line[0] for line in named} - {line[0] for line in rest}:
        (home / file).unlink()
    gone = replace(source, table=str(table(home / "rest.csv", rest, columns)))
    assert patients(read(gone, images, **said)) == wanted


# Volumes: phantoms as DICOM and NIfTI, some of them damaged, with masks or with a table of labels.

PHANTOMS = {
    "dicom": PhantomSource(kind="phantom", scanner="P", patients=4, seed=3, slices=4, damaged=4),
    "nifti": PhantomSource(kind="phantom", scanner="L", patients=4, seed=4, slices=4, damaged=2, format="nifti"),
}


@pytest.fixture(scope="session", params=PHANTOMS)
def phantom(request, tmp_path_factory) -> tuple[PhantomSource, Path]:
    """A phantom hospital; its first patient has a second study where a study is one file."""
    source, home = PHANTOMS[request.param], tmp_path_factory.mktemp("phantom") / request.param
    write(source, home)
    if source.format == "nifti":
        first = patient_name(source, 0)
        image = nibabel.load(home / "images" / f"{first}.nii.gz")
        later = nibabel.Nifti1Image(
            np.asarray(image.dataobj) * 0.9, image.affine + np.eye(4)[:, [3, 0, 1, 2]], image.header
        )
        (home / "images" / "later").mkdir()
        nibabel.save(later, home / "images" / "later" / f"{first}.nii.gz")
    return source, home


def volumes(source: PhantomSource, home: Path, images: Slices | Volumes, masks: bool, **options: Any) -> Reading:
    folder = str(home / "images")
    files = (
        DicomSource(folder=folder, select={"ImageType": "ADC"})
        if source.format == "dicom"
        else NiftiSource(folder=folder)
    )
    if not masks:
        by_slice = source.format == "dicom"  # with several studies a patient, labels per slice need a column of studies
        known = TableLabels(
            file=str(home / ("labels.csv" if by_slice else "whole.csv")), slice="slice" if by_slice else None
        )
        return read(files, images, labels=known, **options)
    return read(
        files,
        images,
        labels=MaskLabels(folder=str(home / "masks" / "lesion")),
        gland=GlandMask(folder=str(home / "masks" / "gland")),
        **options,
    )


def label_tables(source: PhantomSource, home: Path) -> None:
    """whole.csv: a label per patient, from labels.csv; a line of a patient who has none."""
    with (home / "labels.csv").open() as file:
        lines = list(csv.DictReader(file))
    names = sorted({line["patient"] for line in lines})
    ill = {line["patient"] for line in lines if line["label"] == "1"}
    whole = [(name, str(int(name in ill))) for name in names]
    table(home / "whole.csv", [*whole, ("nobody", "2")], ("patient", "label"))


def leave(source: PhantomSource, home: Path, name: str) -> None:
    """Remove everything that names a patient."""
    for path in [*home.rglob(f"{name}.nii.gz"), home / "images" / name]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    with (home / "labels.csv").open() as file:
        rows = [row for row in csv.reader(file) if row[0] != name]
    table(home / "labels.csv", rows[1:], tuple(rows[0]))


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        (Slices(size=16, spacing_mm=4.0, slices="gland"), True),
        (Slices(size=16, spacing_mm=4.0, values="standardized"), False),
        (Volumes(size=12, spacing_mm=5.0, depth=4), True),
    ],
    ids=["gland slices", "standardized slices, table", "volumes"],
)
def test_a_volume_looks_at_no_other_patient(phantom, tmp_path, images, masks):
    source, home = phantom
    label_tables(source, home)
    number_of = source.patients + source.damaged
    first, names = patient_name(source, 0), [patient_name(source, number) for number in range(number_of)]
    said: dict[str, Any] = {"seed": 5, "test": (names[1], "nobody")}
    whole = volumes(source, home, images, masks, **said)
    assert len(whole.cohort.patients) >= source.patients - masks  # a mask does not fit two visits at once
    for one in (first, names[1], names[2], names[-1]):
        wanted = without(whole, one)
        assert patients(volumes(source, home, images, masks, exclude=(one,), **said)) == wanted
        rest = shutil.copytree(home, tmp_path / one)
        leave(source, rest, one)
        label_tables(source, rest)
        gone = volumes(source, rest, images, masks, readers=3, **said)
        assert patients(gone) == wanted
        assert gone.cohort.recipe == whole.cohort.recipe
