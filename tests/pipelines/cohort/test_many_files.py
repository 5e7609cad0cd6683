"""A folder with thousands of files takes what its files take: nothing compares every file with every other one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import nibabel
import numpy as np
import pytest
from small_series import Series

from pipelines.data import index as indexing
from pipelines.data import intake
from pipelines.data.accounts import Account, reject_unserved_patients
from pipelines.data.cohort import read_cohort
from pipelines.data.dicom.reader import _find_damaged_neighbour, _first_damaged, index_dicom
from pipelines.data.grids.geometry import is_same_grid
from pipelines.data.headers import Frame
from pipelines.data.images import Slices
from pipelines.data.index import Candidate, Index, load_candidate, reject_ambiguous
from pipelines.data.intake import read_ahead
from pipelines.data.labels import find_mask, open_masks
from pipelines.data.nifti.reader import index_nifti
from pipelines.data.sources import DicomSource, MaskLabels, NiftiSource
from pipelines.data.study import Study, Unusable


def nothing() -> Study:
    raise AssertionError("no pixels are needed")


def candidate(name: str, affine: Any, patient: str = "P", shape: tuple[int, ...] = (8, 9, 10)) -> Candidate:
    return Candidate(patient, name, "", np.asarray(affine, float), shape, nothing)


def twins_by_all_pairs(group: list[Candidate]) -> dict[str, str]:
    return {
        one.study: other.study
        for one in group
        for other in group
        if one is not other
        and (one.patient, one.session) == (other.patient, other.session)
        and is_same_grid((one.affine, one.shape), (other.affine, other.shape))
    }


def test_ambiguous_studies_are_those_of_all_pairs() -> None:
    made = np.random.default_rng(0)
    few = [np.diag([1.0, 1, 2, 1]), np.diag([1.0, 1, 3, 1]), np.diag([-2.0, 1, 1, 1])]
    found = 0
    for _ in range(30):
        group = []
        for number in range(25):
            affine = few[made.integers(3)].copy()
            affine[made.integers(3), 3] = made.integers(2) + made.choice([0, 0.004, 0.009, 0.0111, 0.02])
            shape = (8, 9, int(made.integers(10, 12)))
            group.append(candidate(f"s{number}", affine, f"P{made.integers(2)}", shape))
        expected = twins_by_all_pairs(group)
        kept, rejected = reject_ambiguous(group)
        assert {one.study for one in rejected} == set(expected)
        assert all(f"{expected[one.study]!r}" in one.detail for one in rejected)
        assert [one.study for one in kept] == [one.study for one in group if one.study not in expected]
        found += len(expected)
    assert found > 50


@pytest.mark.parametrize("same", [False, True])
def test_studies_of_one_patient_are_compared_with_few_others(monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    calls = [0]

    def counted(*grids: Any) -> bool:
        calls[0] += 1
        return is_same_grid(*grids)

    monkeypatch.setattr(indexing, "is_same_grid", counted)
    count = 600
    moved = np.stack([np.eye(4)] * count)
    if not same:
        moved[:, :3, 3] = [(number % 7, number // 7 % 9, number // 63) for number in range(count)]
    kept, rejected = reject_ambiguous([candidate(f"s{n}", affine) for n, affine in enumerate(moved)])
    assert (len(kept), len(rejected)) == ((0, count) if same else (count, 0))
    assert calls[0] <= 3 * count, calls


def growth(work: Callable[[int], int]) -> float:
    return work(400) / work(100)


def test_patients_without_use_are_told_with_one_look_at_each_file() -> None:
    class Counting(list[Account]):
        looks = 0

        def __iter__(self) -> Any:
            for one in super().__iter__():
                type(self).looks += 1
                yield one

    def work(count: int) -> int:
        Counting.looks = 0
        found = Counting(
            Account(f"{n}.dcm", "not_selected", f"P{n}", "", "T2", "series_not_selected", "") for n in range(count)
        )
        assert len(reject_unserved_patients(found)) == count
        return Counting.looks

    assert growth(work) == pytest.approx(4, rel=0.1)


def test_names_with_dates_are_found_without_a_look_at_each_of_them(tmp_path: Path) -> None:
    names = {"A_2020": "a", "A_B_2021": "ab", "B_2020": "b1", "B_2021": "b2", "C": "c", "C_2020": "c2"}
    (tmp_path / "names.csv").write_text("patient,mask\n" + "".join(f"{key},{name}\n" for key, name in names.items()))
    masks = open_masks(MaskLabels(folder=str(tmp_path), names=str(tmp_path / "names.csv")), "labels")

    def reason(patient: str) -> str:
        with pytest.raises(Unusable) as told:
            find_mask(masks, patient, missing="no_label")
        return f"{told.value.reason} {told.value.detail}"

    assert "2 names fit" in reason("B") and "2 names fit" in reason("A")  # A_2020 and A_B_2021
    assert "no mask 'ab" in reason("A_B") and "no mask 'c." in reason("C")
    assert "does not have this patient" in reason("D") and "does not have this patient" in reason("A_2")


def test_the_first_damaged_file_of_a_folder_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b/2.dcm", "a/1.dcm", "b/1.dcm")]
    ruins = _first_damaged(paths)
    frames = [Frame(tmp_path / home / "x.dcm", "", {"SeriesInstanceUID": "1"}) for home in ("a", "b")]
    homes = {tmp_path / home: {"1"} for home in ("a", "b")}
    assert _find_damaged_neighbour(frames, homes, ruins) == "2.dcm"
    assert _find_damaged_neighbour(frames[:1], homes, ruins) == "1.dcm"
    assert _find_damaged_neighbour(frames, {**homes, tmp_path / "b": {"1", "2"}}, ruins) is None


def told(index: Index) -> list[Any]:
    """All that an index says, and all values that its studies have."""
    found: list[Any] = [index.rejected, index.items, index.unselected]
    for one in index.candidates:
        read = load_candidate(one)
        pixels = (read.image.values.tobytes(), read.unit, read.facts) if isinstance(read, Study) else read
        frames = [] if one.stack is None else [frame for volume in one.stack.volumes for frame in volume]
        headers = [(frame.path, frame.index, dict(frame.values), frame.b_value) for frame in frames]
        found.append((one.patient, one.study, one.session, one.affine.tobytes(), one.shape, one.files, headers, pixels))
    return found


def odd_files(folder: Path) -> None:
    """Series, some of them damaged, of two sizes and two alphabets; and files that are no images."""
    for number in range(5):
        home = folder / f"s{number}"
        Series(f"P{number}", f"1.2.{number}", f"1.2.{number}.1", slices=4 + number % 2).write(home)
    (folder / "s1" / "002.dcm").write_bytes((folder / "s1" / "002.dcm").read_bytes()[:300])
    (folder / "s2" / "notes.txt").write_text("no image")
    (folder / "s3" / "003.dcm").unlink()
    for number in range(6):
        shape = (4, 4, 3 + number % 2)
        values = np.arange(1 + number, 1 + number + np.prod(shape), dtype=np.int16).reshape(shape)
        nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 2, 3, 1])), folder / f"n{number}.nii.gz")
    (folder / "n3.nii.gz").write_bytes((folder / "n3.nii.gz").read_bytes()[:60])


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_headers_read_several_at_a_time_say_the_same_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    odd_files(tmp_path)

    def index() -> Index:
        folder = str(tmp_path)
        return index_dicom(DicomSource(folder=folder)) if kind == "dicom" else index_nifti(NiftiSource(folder=folder))

    one = told(index())
    assert len(one) > 5 and one[0], "studies are read, and some are refused"
    monkeypatch.setattr(intake, "TRIED", 1)
    monkeypatch.setattr(intake, "_count_waits", time.perf_counter_ns)
    used, in_order = list[int](), intake.run_in_order

    def spied(*items: Any, readers: int) -> Any:
        used.append(readers)
        return in_order(*items, readers=readers)

    monkeypatch.setattr(intake, "run_in_order", spied)
    for slow, at_once in ((0.0, 2), (0.0, 8), (1e9, 8)):
        monkeypatch.setattr(intake, "SLOW", slow)
        monkeypatch.setattr(intake, "AT_ONCE", at_once)
        assert told(index()) == one
    assert used == [2, 8, 1]


@pytest.mark.parametrize("source", [DicomSource, NiftiSource])
def test_readers_change_nothing_of_a_cohort(tmp_path: Path, source: type[Any]) -> None:
    odd_files(tmp_path)

    def read(readers: int) -> tuple[Any, ...]:
        shares = {"train": 0.5, "validation": 0.25, "test": 0.25}
        images = Slices(values="standardized", centre="image", size=8)
        how = {"fractions": shares, "seed": 0, "key": b"k" * 32, "readers": readers, "scratch": tmp_path}
        found = read_cohort(source(folder=str(tmp_path)), None, images, **how)  # type: ignore[arg-type]
        tensors = [getattr(found.cohort, name).numpy().tobytes() for name in ("images", "patient", "split", "position")]
        return tensors, found.facts, found.rejected, found.accounts, found.names

    one = read(1)
    assert one[1]["studies"] >= 3 and one[2]
    assert read(2) == one and read(5) == one


def test_a_disk_that_answers_late_is_asked_for_several_files_at_once() -> None:
    asleep, most = [0], [0]
    lock = Lock()

    def late(number: int) -> int:
        with lock:
            asleep[0] += 1
            most[0] = max(most[0], asleep[0])
        time.sleep(0.002)
        with lock:
            asleep[0] -= 1
        return -number

    assert list(read_ahead(range(intake.TRIED + 50), late)) == [-number for number in range(intake.TRIED + 50)]
    assert 1 < most[0] <= intake.AT_ONCE + 1, "whoever waits for a result that no thread has begun makes it"
    most[0] = 0
    assert len(list(read_ahead(range(intake.TRIED), late))) == intake.TRIED and most[0] == 1
    with pytest.raises(MemoryError, match="at 70"):
        list(read_ahead(range(100), lambda number: failing(late(number))))


def failing(number: int) -> int:
    if number == -70:
        raise MemoryError("at 70")
    return number
