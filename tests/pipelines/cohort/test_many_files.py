"""A folder with thousands of files takes what its files take: nothing compares every file with every other one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.data import index as indexing
from pipelines.data.accounts import Account, unserved
from pipelines.data.dicom.reader import _damage, _first_damaged
from pipelines.data.grids.geometry import same_grid
from pipelines.data.headers import Frame
from pipelines.data.index import Candidate, without_ambiguous
from pipelines.data.labels import find_mask, open_masks
from pipelines.data.sources import MaskLabels
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
        and same_grid((one.affine, one.shape), (other.affine, other.shape))
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
        kept, rejected = without_ambiguous(group)
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
        return same_grid(*grids)

    monkeypatch.setattr(indexing, "same_grid", counted)
    count = 600
    moved = np.stack([np.eye(4)] * count)
    if not same:
        moved[:, :3, 3] = [(number % 7, number // 7 % 9, number // 63) for number in range(count)]
    kept, rejected = without_ambiguous([candidate(f"s{n}", affine) for n, affine in enumerate(moved)])
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
        assert len(unserved(found)) == count
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
    assert _damage(frames, homes, ruins) == "2.dcm"
    assert _damage(frames[:1], homes, ruins) == "1.dcm"
    assert _damage(frames, {**homes, tmp_path / "b": {"1", "2"}}, ruins) is None
