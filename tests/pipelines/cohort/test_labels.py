"""Labels: mappings of names, masks, and tables; what is missing or contradictory rejects one study with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.data.labels import find_mask, open_masks, open_table, table_labels
from pipelines.data.sources import GlandMask, MaskLabels, TableLabels
from pipelines.data.study import Unusable


def masks(tmp_path: Path, names: object = None, files: tuple[str, ...] = ("A.nii.gz",)) -> MaskLabels:
    folder = tmp_path / "masks"
    folder.mkdir(exist_ok=True)
    for name in files:
        (folder / name).write_bytes(b"")
    if names is None:
        return MaskLabels(folder=str(folder))
    path = tmp_path / ("names.csv" if isinstance(names, str) else "names.json")
    path.write_text(names if isinstance(names, str) else json.dumps(names))
    return MaskLabels(folder=str(folder), names=str(path))


def mask_name(settings: MaskLabels | GlandMask, patient: str) -> str:
    return find_mask(open_masks(settings, "labels"), patient, missing="no_label").name


def reason(settings: MaskLabels, patient: str) -> str:
    with pytest.raises(Unusable) as caught:
        mask_name(settings, patient)
    return caught.value.reason


def test_a_mask_is_found_by_the_patients_name(tmp_path: Path) -> None:
    settings = masks(tmp_path)
    assert mask_name(settings, "A") == "A.nii.gz"
    assert reason(settings, "B") == "no_label"


@pytest.mark.parametrize(
    "names", [{"P-1_07-07-2011": "A", "P-10": "B", "P-2_x": "A"}, "from;to\nP-1_07-07-2011;A\nP-10;B\nP-2_x;A\n"]
)
def test_names_may_carry_a_date(tmp_path: Path, names: object) -> None:
    settings = masks(tmp_path, names, files=("A.nii.gz", "B.nii.gz"))
    assert [mask_name(settings, patient) for patient in ("P-1", "P-10", "P-2")] == ["A.nii.gz", "B.nii.gz", "A.nii.gz"]
    assert reason(settings, "P") == "no_label"


def test_an_exact_name_goes_before_a_dated_one_and_two_dated_ones_are_ambiguous(tmp_path: Path) -> None:
    settings = masks(tmp_path, {"P": "A", "P_1": "B", "Q_1": "A", "Q_2": "B"})
    assert mask_name(settings, "P") == "A.nii.gz"
    assert reason(settings, "Q") == "ambiguous_name"


def test_a_name_ends_at_an_underscore_and_nowhere_else(tmp_path: Path) -> None:
    settings = masks(tmp_path, dict.fromkeys(("P10_1", "P1-2", "P1 2", "P1.2", "P12", "XP1_2", "p1_2", "P1"), "A"))
    assert mask_name(settings, "P1") == "A.nii.gz"
    for other in ("P", "XP", "P1-", "1_2", "2", "p"):
        assert reason(settings, other) == "no_label"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"Q": "B", "P": 5, "P_1": "A"}, "no_label"),  # his own entry counts, and not the dated one
        ('[["P", "A"], ["Q", "B"], ["P", "B"]]', "ambiguous_name"),
        ("from;to\nP;A\nQ;B\nP;C\n", "ambiguous_name"),
        ("from;to\nP;A;C\nQ;B\n", "no_label"),
        ('from;to\nP;"A\nQ;B\n', "no_label"),
        ("from;to\nP;\udcff\nQ;B\n", "no_label"),
    ],
)
def test_what_is_wrong_with_one_name_rejects_its_patient_only(tmp_path: Path, names: object, told: str) -> None:
    settings = masks(tmp_path, files=("A.nii.gz", "B.nii.gz", "C.nii.gz"))
    text = names if isinstance(names, str) else json.dumps(names)
    path = tmp_path / ("names.csv" if text.startswith("from") else "names.json")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    settings = MaskLabels(folder=settings.folder, names=str(path))
    assert mask_name(settings, "Q") == "B.nii.gz"
    assert reason(settings, "P") == told


def test_a_patient_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.nii.gz").write_bytes(b"")
    settings = masks(tmp_path)
    assert (Path(settings.folder) / "../secret.nii.gz").is_file()
    assert reason(settings, "../secret") == "no_label"
    assert reason(settings, str(tmp_path / "secret")) == "no_label"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not a mapping"),
        ("[1, 2]", "pair 1 is not two names"),
        ('{"a": 1}', "pair 1 is not two names"),
        ('{"a": "b", "a": "c"}', "pair 2 gives a second name"),
    ],
)
def test_a_broken_mapping_is_told_together_with_the_folder(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "names.json").write_text(text)
    settings = GlandMask(folder=str(tmp_path / "gone"), names=str(tmp_path / "names.json"))
    with pytest.raises(ValueError, match=rf"gland\.folder.*does not exist.*gland\.names.*{problem}"):
        open_masks(settings, "gland")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"no \{patient\}.*minimum_pixels must be at least 1, found 0"):
        MaskLabels(folder=".", pattern="x.nii.gz", minimum_pixels=0)
    with pytest.raises(ValueError, match=r"no \{patient\}"):
        GlandMask(folder=".", pattern="x")


def labels_of(
    tmp_path: Path, text: str, study: str = "f/1.2/1.2.3", *, alone: bool = True, **columns: str
) -> list[int]:
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8-sig")
    table = open_table(TableLabels(file=str(tmp_path / "labels.csv"), **columns))
    return table_labels(table, "A", study, [2, 3], alone=alone)


def test_labels_per_patient_study_and_slice(tmp_path: Path) -> None:
    assert labels_of(tmp_path, "patient,label\nA,1\nB,0\n") == [1, 1]
    assert labels_of(tmp_path, "patient;label\n A ; 0 \n") == [0, 0]
    assert labels_of(tmp_path, "id\tcancer\nA\t1\nA\t1\n", patient="id", label="cancer") == [1, 1]
    assert labels_of(tmp_path, "patient,slice,label\nA,3,1\nA,2,0\nA,9,\n", slice="slice") == [0, 1]


@pytest.mark.parametrize(
    ("study", "name"),
    [("f/1.2/1.2.3", name) for name in ("f", "1.2", "1.2.3", "f/1.2", "f/1.2/1.2.3")] + [("sub/scan1.nii.gz", "scan1")],
)
def test_a_study_goes_by_its_folder_its_file_or_its_instance_uid(tmp_path: Path, study: str, name: str) -> None:
    text = f"patient,scan,label\nA,{name},1\nA,other,0\n"
    (tmp_path / "labels.csv").write_text(text)
    table = open_table(TableLabels(file=str(tmp_path / "labels.csv"), study="scan"))
    assert table_labels(table, "A", study, [0, 1], alone=False) == [1, 1]


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("patient,label\nB,1\n", {}, "no_label"),
        ("patient,label\nA,\n", {}, "no_label"),
        ("patient,label\nA\n", {}, "no_label"),
        ("patient,label\nA,2\n", {}, "bad_label"),
        ("patient,label\nA,YES\n", {}, "bad_label"),
        ("patient,label\nA,1\nA,0\n", {}, "bad_label"),
        ("patient,label\nA,1\nA,\n", {}, "bad_label"),
        ("patient,slice,label\nA,2,1\n", {"slice": "slice"}, "no_label"),
        ("patient,slice,label\nA,2,1\nA,3,7\n", {"slice": "slice"}, "bad_label"),
        ("patient,slice,label\nA,two,1\n", {"slice": "slice"}, "bad_label"),
    ],
)
def test_what_is_no_label_rejects_the_study(tmp_path: Path, text: str, columns: dict[str, str], expected: str) -> None:
    with pytest.raises(Unusable) as caught:
        labels_of(tmp_path, text, **columns)
    assert caught.value.reason == expected


@pytest.mark.parametrize("broken", ['A,"1', "A,1,1", "A,\udcff"])
def test_a_line_that_cannot_be_read_labels_nobody_and_is_told_by_its_number(tmp_path: Path, broken: str) -> None:
    (tmp_path / "labels.csv").write_text(f"patient,label\nB,1\n{broken}\nC,0\n", errors="surrogateescape")
    table = open_table(TableLabels(file=str(tmp_path / "labels.csv")))
    assert [table_labels(table, name, "f", [2, 3], alone=True) for name in "BC"] == [[1, 1], [0, 0]]
    with pytest.raises(Unusable, match=r"no_label.*line 2 cannot be read"):
        table_labels(table, "A", "f", [2, 3], alone=True)


def test_slices_of_several_studies_need_a_study_column(tmp_path: Path) -> None:
    with pytest.raises(Unusable) as caught:
        labels_of(tmp_path, "patient,slice,label\nA,2,1\nA,3,1\n", alone=False, slice="slice")
    assert caught.value.reason == "ambiguous_label"


def test_a_table_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        open_table(TableLabels(file=str(tmp_path / "gone.csv")))
    (tmp_path / "labels.csv").write_text("patient,diagnosis\nA,1\n")
    with pytest.raises(ValueError, match=r"no column label, scan; see the names in its first line"):
        open_table(TableLabels(file=str(tmp_path / "labels.csv"), study="scan"))
    (tmp_path / "labels.csv").write_text("")
    with pytest.raises(ValueError, match="empty"):
        open_table(TableLabels(file=str(tmp_path / "labels.csv")))
    (tmp_path / "labels.csv").write_bytes(b"\xff\xfe\x00label")
    with pytest.raises(ValueError, match="cannot be read"):
        open_table(TableLabels(file=str(tmp_path / "labels.csv")))


def test_one_mask_cannot_stand_for_several_visits(tmp_path: Path) -> None:
    (tmp_path / "P1.nii.gz").write_bytes(b"x")
    (tmp_path / "P1_1.2.3.nii.gz").write_bytes(b"x")
    by_patient, by_visit = (
        open_masks(GlandMask(folder=str(tmp_path), pattern=pattern), "gland")
        for pattern in ("{patient}.nii.gz", "{patient}_{session}.nii.gz")
    )
    assert find_mask(by_patient, "P1", missing="no_gland", session="1.2.3").name == "P1.nii.gz"
    with pytest.raises(Unusable, match="ambiguous_mask"):
        find_mask(by_patient, "P1", missing="no_gland", session="1.2.3", visits=2)
    assert find_mask(by_visit, "P1", missing="no_gland", session="1.2.3", visits=2).name == "P1_1.2.3.nii.gz"
