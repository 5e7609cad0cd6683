"""Whose a NIfTI file is and what it shows, by its name, its sidecar and its header."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.accounts import list_accounts, list_unused_patients
from pipelines.data.cohort import read_cohort
from pipelines.data.images import Slices
from pipelines.data.nifti.bids import decide_from_file, file_stem, find_patient_session, read_sidecar
from pipelines.data.pseudonym import make_pseudonym, normalize_identifier
from pipelines.data.sources import GlandMask, NiftiSource
from pipelines.data.studies import index_volumes, open_studies
from pipelines.data.study import Unusable

AFFINE = np.diag([2.0, 2.0, 4.0, 1.0])
SHAPE = (12, 12, 4)


def save(path: Path, *, seed: int = 0, words: bytes = b"", affine: np.ndarray = AFFINE) -> Path:
    """An image whose values would pass for ADC in 1e-6 mm²/s."""
    values = np.random.default_rng(seed).uniform(500, 2000, SHAPE).astype(np.float32)
    image = nibabel.Nifti1Image(values, affine)
    image.header["descrip"] = words
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)
    return path


labels = st.text(st.sampled_from("abcXYZ0123456789"), min_size=1, max_size=4)
SUFFIXES = ("adc", "ADC", "dwi", "T2w", "T1w", "FLAIR", "trace", "mask", "bold")


@st.composite
def bids_names(draw: st.DrawFn, subject: str) -> str:
    session = draw(st.none() | labels)
    entities = [f"sub-{subject}", *([f"ses-{session}"] if session else [])]
    entities += [
        f"{key}-{draw(labels)}" for key in draw(st.lists(st.sampled_from(("acq", "run", "desc")), unique=True))
    ]
    folders = draw(st.sampled_from(("", f"sub-{subject}/", f"sub-{subject}/dwi/", "derivatives/x/")))
    suffix, ending = draw(st.sampled_from(SUFFIXES)), draw(st.sampled_from((".nii", ".nii.gz")))
    return f"{folders}{'_'.join([*entities, suffix])}{ending}"


@settings(max_examples=200)
@given(st.data(), st.lists(labels, min_size=2, max_size=4, unique_by=str.lower))
def test_all_files_of_a_subject_are_of_one_patient_and_no_other(data: st.DataObject, subjects: list[str]) -> None:
    for subject in subjects:
        names = data.draw(st.lists(bids_names(subject), min_size=1, max_size=5))
        assert {find_patient_session(name, None)[0] for name in names} == {f"sub-{subject}"}


@pytest.mark.parametrize(
    ("study", "expression", "found"),
    [
        ("sub-01_adc.nii.gz", None, ("sub-01", "")),
        ("sub-01_ses-02_adc.nii.gz", None, ("sub-01", "ses-02")),
        ("sub-01_ses-02_acq-b800_ADC.nii", None, ("sub-01", "ses-02")),
        ("sub-01.nii.gz", None, ("sub-01", "")),
        ("sub-01/ses-02/dwi/sub-01_ses-02_adc.nii.gz", None, ("sub-01", "ses-02")),
        ("sub-01/ses-02/adc.nii.gz", None, ("sub-01", "ses-02")),
        ("P1_adc.nii.gz", None, ("P1_adc", "")),
        ("Miller.nii.gz", None, ("Miller", "")),
        ("a/Miller.nii.gz", None, ("Miller", "")),
        ("sub-01_ses-02_adc.nii.gz", "^(.+)_adc$", ("sub-01_ses-02", "ses-02")),
        ("P1_adc.nii.gz", "^(.+)_adc$", ("P1", "")),
        ("P1_t2.nii.gz", "^(.+)_adc$", (None, "")),
        ("subject-01_adc.nii.gz", None, ("subject-01_adc", "")),
    ],
)
def test_names_say_patient_and_session(study: str, expression: str | None, found: tuple[str | None, str]) -> None:
    assert find_patient_session(study, expression) == found


@pytest.mark.parametrize(
    ("name", "adc"),
    [
        ("sub-01_adc.nii.gz", True),
        ("sub-01_ses-02_ADC.nii.gz", True),
        ("sub-01_param-ADC_dwimap.nii.gz", True),
        ("sub-01_desc-adc_map.nii.gz", True),
        ("sub-01_param-FA_dwimap.nii.gz", False),
        ("sub-01_dwi.nii.gz", False),
        ("sub-01_acq-adc_dwi.nii.gz", False),
        ("sub-01_T2w.nii.gz", False),
        ("sub-ADC_T2w.nii.gz", False),
        ("sub-01_foo.nii.gz", None),
        ("P1_adc.nii.gz", True),
        ("P1_ADC_b1000.nii.gz", True),
        ("P1-ADC.nii", True),
        ("P1_adc_mask.nii.gz", False),
        ("P1_b800.nii.gz", False),
        ("P1_t2.nii.gz", False),
        ("P1.nii.gz", None),
        ("CADCAM.nii.gz", None),
    ],
)
def test_names_say_what_is_shown(name: str, adc: bool | None) -> None:
    assert decide_from_file(Path("/images") / name, "", {}).adc is adc
    if adc is None:
        assert decide_from_file(Path("/clinic/ADC") / name, "", {}).adc is True  # the folder is called so
        assert decide_from_file(Path("/clinic/dwi") / name, "", {}).adc is None


@pytest.mark.parametrize("name", ["t2_P1", "P1_T2w_raw", "t1_to_adc", "t2_registered_ADC", "P1_flair_adc", "adc_in_t2"])
def test_a_name_of_another_contrast_is_no_evidence_in_whatever_folder(name: str, tmp_path: Path) -> None:
    for folder in ("images", "ADC"):
        assert decide_from_file(Path("/clinic") / folder / f"{name}.nii.gz", "", {}).adc is not True
    save(tmp_path / "ADC" / f"{name}.nii.gz")
    assert [one.reason for one in index_volumes(NiftiSource(folder=str(tmp_path)), adc=True).rejected] == ["not_adc"]


def test_a_file_that_is_refused_by_its_header_still_says_whose_it_is(tmp_path: Path) -> None:
    save(tmp_path / "sub-01_adc.nii.gz")
    (tmp_path / "sub-02_adc.nii.gz").write_bytes(b"")
    (tmp_path / "P3.nii.gz").write_bytes(b"")
    save(tmp_path / "sub-04_dwi.nii.gz")
    save(tmp_path / "P1_t2.nii.gz")  # not the name of a patient
    index = index_volumes(NiftiSource(folder=str(tmp_path)), adc=True)
    assert list_unused_patients(list_accounts(index.items, index.rejected)) == ["P3", "sub-02", "sub-04"]


def test_the_header_and_the_sidecar_speak_before_the_name(tmp_path: Path) -> None:
    assert decide_from_file(Path("P1.nii"), "fit; ADC 1e-3 mm2/s", {}) == (
        True,
        "the NIfTI description says 1e-3 mm2/s",
    )
    assert decide_from_file(Path("P1.nii"), "TE=65;Time=101500", {}).adc is None
    path = save(tmp_path / "7_ep2d_diff_b50_800.nii.gz")
    (tmp_path / "7_ep2d_diff_b50_800.json").write_text(
        json.dumps({"ImageType": ["DERIVED", "PRIMARY", "DIFFUSION", "ADC"], "EchoTime": 0.07})
    )
    found = decide_from_file(path, "", read_sidecar(path))
    assert found == (True, "the sidecar's ImageType says ADC")
    (tmp_path / "7_ep2d_diff_b50_800.json").write_text(json.dumps({"ImageType": ["ORIGINAL", "PRIMARY", "M"]}))
    assert decide_from_file(tmp_path / "x_adc.nii", "", read_sidecar(path)).adc is False


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"a":' * 9000, "\xff"])
def test_a_damaged_sidecar_is_told(tmp_path: Path, text: str) -> None:
    path = save(tmp_path / "sub-01_adc.nii.gz")
    (tmp_path / "sub-01_adc.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(Unusable, match=r"sub-01_adc.json") as caught:
        read_sidecar(path)
    assert caught.value.reason == "unreadable"
    assert [one.reason for one in index_volumes(NiftiSource(folder=str(tmp_path)), adc=True).rejected] == ["unreadable"]


def test_of_one_subjects_modalities_only_the_map_is_used(tmp_path: Path) -> None:
    for subject in range(6):
        for suffix in ("adc", "dwi", "T2w", "foo"):
            save(tmp_path / f"sub-{subject:02d}" / f"sub-{subject:02d}_{suffix}.nii.gz", seed=subject)
    cohort, rejected, facts, *_ = read_cohort(
        NiftiSource(folder=str(tmp_path)),
        None,
        Slices(size=12),
        fractions={"train": 0.5, "validation": 0.0, "test": 0.5},
        seed=0,
        key=b"a secret of 16 b",
    )
    assert (facts["patients"], facts["studies"]) == (6, 6)
    assert Counter(one.reason for one in rejected) == {"not_adc": 18}
    assert len(cohort.patients) == 6


def test_a_person_may_say_what_nothing_else_says_and_overrules_nothing(tmp_path: Path) -> None:
    save(tmp_path / "sub-01_foo.nii.gz")
    save(tmp_path / "sub-02_dwi.nii.gz")
    source = NiftiSource(folder=str(tmp_path), unit="1e-6 mm2/s")
    opened = open_studies(source, None, Slices(size=12), None)
    (one,) = opened.waiting
    assert one.read().evidence.startswith("the settings say ADC, by naming a unit; unit 1e-6 mm2/s by the settings: ")
    assert [(one.study, one.reason) for one in opened.rejected] == [("sub-02_dwi.nii.gz", "not_adc")]


def test_two_maps_of_one_visit_are_ambiguous_and_of_two_visits_are_not(tmp_path: Path) -> None:
    for name in ("sub-01_ses-01_adc", "sub-01_ses-02_adc", "sub-02_run-1_adc", "sub-02_run-2_adc"):
        save(tmp_path / f"{name}.nii.gz")
    index = index_volumes(NiftiSource(folder=str(tmp_path)), adc=True)
    assert {(one.patient, one.session) for one in index.candidates} == {("sub-01", "ses-01"), ("sub-01", "ses-02")}
    assert [one.reason for one in index.rejected] == ["ambiguous"] * 2


def test_masks_are_found_by_subject_and_session(tmp_path: Path) -> None:
    for session in ("ses-01", "ses-02"):
        save(tmp_path / "images" / f"sub-01_{session}_adc.nii.gz")
        save(tmp_path / "masks" / f"sub-01_{session}.nii.gz", seed=5)
    source = NiftiSource(folder=str(tmp_path / "images"))
    asked = GlandMask(folder=str(tmp_path / "masks"), pattern="{patient}_{session}.nii.gz")
    opened = open_studies(source, None, Slices(size=12), asked)
    assert all(one.read().examples.gland.any() for one in opened.waiting) and len(opened.waiting) == 2
    whole = open_studies(source, None, Slices(size=12), GlandMask(folder=str(tmp_path / "masks")))
    with pytest.raises(Unusable) as caught:
        whole.waiting[0].read()
    assert caught.value.reason == "ambiguous_mask"


def test_a_units_sidecar_is_followed(tmp_path: Path) -> None:
    path = save(tmp_path / "sub-01_adc.nii.gz")
    path.with_name("sub-01_adc.json").write_text(json.dumps({"Units": "um2/s"}))
    (one,) = open_studies(NiftiSource(folder=str(tmp_path)), None, Slices(size=12), None).waiting
    assert one.read().evidence.startswith("the sidecar's Units says 'um2/s'; unit 'um2/s': values")


def test_stems() -> None:
    assert [file_stem(name) for name in ("a.nii.gz", "a.NII", "a.b.json", ".nii")] == ["a", "a", "a.b", ""]


@pytest.mark.parametrize("name", ["sub-01", "sub-01_adc", "SUB-01_adc"])
@pytest.mark.parametrize("coded", [False, True])
def test_whoever_withdrew_stays_out_by_his_files_name_too(tmp_path: Path, name: str, coded: bool) -> None:
    """The whole name of a file was the identifier before BIDS names were understood."""
    key = b"a secret of 16 b"
    for subject in ("sub-01", "sub-02"):
        save(tmp_path / f"{subject}_adc.nii.gz")
    reading = read_cohort(
        NiftiSource(folder=str(tmp_path)),
        None,
        Slices(size=12),
        fractions={"train": 1.0, "validation": 0.0, "test": 0.0},
        seed=0,
        key=key,
        exclude=(make_pseudonym(key, normalize_identifier(name)) if coded else name,),
    )
    known = normalize_identifier(name) in ("sub-01", "sub-01_adc")
    assert (reading.facts["excluded"], reading.facts["unmatched_exclusions"]) == ((1, 0) if known else (0, 1))
    assert (make_pseudonym(key, "sub-01") in reading.cohort.patients) is not known


@settings(max_examples=8)
@given(st.data(), st.lists(labels, min_size=2, max_size=3, unique_by=str.lower), st.integers(0, 3))
def test_no_subject_is_in_two_splits_whatever_his_files_are_called(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, subjects: list[str], seed: int
) -> None:
    root = tmp_path_factory.mktemp("bids")
    for subject in subjects:
        for number, name in enumerate(data.draw(st.lists(bids_names(subject), min_size=1, max_size=4, unique=True))):
            save(root / name, seed=number)
    reading = read_cohort(
        NiftiSource(folder=str(root), pattern="*"),
        None,
        Slices(size=12),
        fractions={"train": 0.4, "validation": 0.3, "test": 0.3},
        seed=seed,
        key=b"a secret of 16 b",
    )
    cohort = reading.cohort
    assert set(reading.names.values()) <= {normalize_identifier(f"sub-{subject}") for subject in subjects}
    for patient in range(len(cohort.patients)):
        assert len(set(cohort.split[cohort.patient == patient].tolist())) == 1
    assert len(cohort.patients) == len(reading.names)
