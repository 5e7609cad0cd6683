"""Reading NIfTI files: what is read is right, and whatever is wrong has its own reason."""

from __future__ import annotations

import gzip
import logging.handlers
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.data.nifti.reader import index_nifti, read_nifti, read_volume
from pipelines.data.sources import NiftiSource

SHAPE = (3, 4, 5)
AFFINE = np.array([[-1.5, 0, 0, 10], [0, 0.2, -3, 20], [0, 2, 0.3, 30], [0, 0, 0, 1]])
VALUES = np.arange(60, dtype=np.int16).reshape(SHAPE)


def image(kind: type[nibabel.Nifti1Image] = nibabel.Nifti1Image) -> nibabel.Nifti1Image:
    made = kind(VALUES, AFFINE)
    made.header.set_xyzt_units("mm")
    return made


def saved(folder: Path, made: nibabel.Nifti1Image | bytes, name: str = "Miller.nii.gz") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    raw = made if isinstance(made, bytes) else made.to_bytes()
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    return folder / name


def reason(folder: Path, **options: str) -> str:
    studies, rejected = read_nifti(NiftiSource(folder=str(folder), **options))
    assert not studies
    (found,) = rejected
    assert found.detail.endswith(".")
    return found.reason


@pytest.mark.parametrize("name", ["Miller.nii.gz", "Miller.nii"])
@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize(
    ("kind", "first", "at", "form"), [(nibabel.Nifti1Image, 352, 108, "f"), (nibabel.Nifti2Image, 544, 168, "q")]
)
def test_a_voxel_inside_the_header_of_a_single_file_is_refused(
    tmp_path: Path, kind: type[nibabel.Nifti1Image], first: int, at: int, form: str, endian: str, name: str
) -> None:
    made = kind(VALUES.astype(VALUES.dtype.newbyteorder(endian)), AFFINE, kind.header_class(endianness=endian))
    made.header.set_xyzt_units("mm")
    raw = made.to_bytes()
    for offset in (0, 1, 16, first - 4, first - 1, first):
        packed = struct.pack(f"{endian}{form}", offset)
        path = saved(tmp_path / str(offset), raw[:at] + packed + raw[at + len(packed) :], name)
        studies, rejected = read_nifti(NiftiSource(folder=str(path.parent), pattern="*.nii*"))
        if offset == first:
            assert np.array_equal(studies[0].image.values, VALUES)
        else:
            assert not studies and rejected[0].reason == "unreadable"
            assert f"byte {offset} (vox_offset)" in rejected[0].detail and f"byte {first}" in rejected[0].detail


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("name", ["Miller.nii.gz", "Miller.nii"])
@pytest.mark.parametrize("endian", ["<", ">"])
def test_values_scaling_and_place(tmp_path: Path, kind: type[nibabel.Nifti1Image], name: str, endian: str) -> None:
    header = kind.header_class(endianness=endian)
    made = kind(VALUES.astype(VALUES.dtype.newbyteorder(endian)), AFFINE, header)
    made.header.set_slope_inter(0.5, 1)
    made.header["descrip"] = b"fit; ADC 1e-3 mm2/s"
    saved(tmp_path / "a", made, name)
    (study,), rejected = read_nifti(NiftiSource(folder=str(tmp_path), pattern="*.nii*"))
    assert not rejected
    assert (study.patient, study.study, study.unit) == ("Miller", f"a/{name}", "fit; ADC 1e-3 mm2/s")
    assert np.allclose(study.image.affine, AFFINE, atol=1e-5)
    assert study.image.values.dtype == np.float32
    assert np.allclose(study.image.values, VALUES * 0.5 + 1)


def test_a_description_without_a_diffusivity_is_no_unit(tmp_path: Path) -> None:
    made = image()
    made.header["descrip"] = b"TE=65;sec=43200"
    saved(tmp_path, made)
    assert read_nifti(NiftiSource(folder=str(tmp_path)))[0][0].unit is None


def test_a_qform_alone_is_enough(tmp_path: Path) -> None:
    rigid = np.diag([-2.0, 2.0, 3.0, 1.0])
    made = nibabel.Nifti1Image(VALUES, None)
    made.set_qform(rigid, code=1)
    made.set_sform(None, code=0)
    assert np.allclose(read_volume(saved(tmp_path, made)).affine, rigid, atol=1e-5)


def test_trailing_axes_of_length_one_are_dropped(tmp_path: Path) -> None:
    made = nibabel.Nifti1Image(VALUES[..., None, None], AFFINE)
    assert read_volume(saved(tmp_path, made)).values.shape == SHAPE


def test_header_extensions_do_not_disturb(tmp_path: Path) -> None:
    made = image()
    made.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"x" * 5000))
    saved(tmp_path, made)
    studies, rejected = read_nifti(NiftiSource(folder=str(tmp_path)))
    assert not rejected
    assert np.array_equal(studies[0].image.values, VALUES)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize(("one", "other", "refused"), [(0, 1, True), (1, 0, True), (0, 2, False), (2, 1, False)])
def test_shear_in_the_plane_is_refused_as_in_dicom_and_a_leaning_stack_is_not(
    tmp_path: Path, one: int, other: int, refused: bool, order: tuple[int, int, int]
) -> None:
    affine = np.diag([2.0, 2.0, 3.0, 1.0])
    affine[one, other] = 0.4
    affine[:, :3] = affine[:, list(order)]
    made = nibabel.Nifti1Image(VALUES, affine)
    made.set_qform(None, code=0)
    saved(tmp_path, made)
    if refused:
        assert reason(tmp_path) == "non_orthogonal"
    else:
        assert np.allclose(read_volume(tmp_path / "Miller.nii.gz").affine, affine)


def set_forms(sform: np.ndarray | None, qform: np.ndarray | None) -> nibabel.Nifti1Image:
    made = nibabel.Nifti1Image(VALUES, np.diag([2.0, 2, 3, 1]))
    made.set_sform(sform, code=0 if sform is None else 1)
    made.set_qform(qform, code=0 if qform is None else 1)
    return made


def edited(made: nibabel.Nifti1Image, **fields: object) -> bytes:
    """The bytes of a file whose header a faulty converter wrote: nibabel would correct it on saving."""
    raw = made.to_bytes()
    header = nibabel.Nifti1Header(raw[:348])
    for name, value in fields.items():
        header[name] = value
    return bytes(header.binaryblock) + raw[348:]


def with_singular() -> bytes:
    return edited(set_forms(np.eye(4), None), srow_z=[0, 1, 0, 0])


def with_infinite() -> bytes:
    return edited(set_forms(np.eye(4), None), srow_x=[np.inf, 0, 0, 0])


def with_bad_quaternion() -> bytes:
    return edited(set_forms(None, np.eye(4)), quatern_b=3, quatern_c=3)


def in_metres() -> nibabel.Nifti1Image:
    made = image()
    made.header.set_xyzt_units("meter")
    return made


def coloured() -> nibabel.Nifti1Image:
    kind = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    return nibabel.Nifti1Image(np.zeros(SHAPE, kind), AFFINE)


DEFECTS: dict[str, tuple[str, Callable[[], nibabel.Nifti1Image | bytes]]] = {
    "four dimensions": ("four_d", lambda: nibabel.Nifti1Image(np.zeros((3, 4, 5, 2), np.int16), AFFINE)),
    "two dimensions": ("four_d", lambda: nibabel.Nifti1Image(np.zeros((3, 4), np.int16), AFFINE)),
    "one slice": ("single_slice", lambda: nibabel.Nifti1Image(np.zeros((3, 4, 1), np.int16), AFFINE)),
    "no geometry": ("no_geometry", lambda: set_forms(None, None)),
    "forms differ": ("form_disagreement", lambda: set_forms(np.diag([2.0, 2, 3, 1]), np.diag([-2.0, -2, 3, 1]))),
    "singular": ("bad_affine", with_singular),
    "infinite": ("bad_affine", with_infinite),
    "quaternion": ("bad_affine", with_bad_quaternion),
    "metres": ("length_unit", in_metres),
    "colour": ("value_type", coloured),
    "complex": ("value_type", lambda: nibabel.Nifti1Image(np.zeros(SHAPE, np.complex64), AFFINE)),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_has_its_reason(tmp_path: Path, defect: str) -> None:
    expected, make = DEFECTS[defect]
    saved(tmp_path, make())
    assert reason(tmp_path) == expected


def test_forms_may_differ_by_half_a_voxel(tmp_path: Path) -> None:
    moved = np.diag([2.0, 2, 3, 1])
    moved[0, 3] = 0.9
    saved(tmp_path / "near", set_forms(np.diag([2.0, 2, 3, 1]), moved))
    assert len(read_nifti(NiftiSource(folder=str(tmp_path / "near")))[0]) == 1
    moved[0, 3] = 1.1
    saved(tmp_path / "far", set_forms(np.diag([2.0, 2, 3, 1]), moved))
    assert reason(tmp_path / "far") == "form_disagreement"


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("name", ["Miller.nii.gz", "Miller.nii"])
def test_a_file_cut_short_is_unreadable(tmp_path: Path, share: float, name: str) -> None:
    path = saved(tmp_path, image(), name)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert reason(tmp_path, pattern="*") == "unreadable"


def test_a_wrong_checksum_is_unreadable(tmp_path: Path) -> None:
    path = saved(tmp_path, image())
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(bytes(data))
    assert reason(tmp_path) == "unreadable"


def test_what_nibabel_mends_is_not_printed(tmp_path: Path) -> None:
    made = edited(set_forms(np.diag([2.0, 2, 3, 1]), None), pixdim=[1, -2, 2, 3, 0, 0, 0, 0])
    printed = logging.handlers.BufferingHandler(100)
    logging.getLogger("nibabel.global").addHandler(printed)
    volume = read_volume(saved(tmp_path, made))
    logging.getLogger("nibabel.global").removeHandler(printed)
    assert np.array_equal(volume.values, VALUES)
    assert not printed.buffer  # a message about a damaged header may quote it


def test_a_link_gives_its_name_to_content_kept_in_a_hidden_folder(tmp_path: Path) -> None:
    kept = saved(tmp_path / ".annex", image(), "hash.nii.gz")
    saved(tmp_path, image(), "._Miller.nii.gz")
    (tmp_path / "Miller.nii.gz").symlink_to(kept)
    (tmp_path / "a").symlink_to(tmp_path / ".annex")
    studies, rejected = read_nifti(NiftiSource(folder=str(tmp_path)))
    assert [study.patient for study in studies] == ["Miller"]
    assert not rejected


def test_an_alias_does_not_rename_a_file(tmp_path: Path) -> None:
    path = saved(tmp_path, image())
    for name in ("Alias.nii.gz", "Zalias.nii.gz"):
        (tmp_path / name).symlink_to(path)
    assert [study.patient for study in read_nifti(NiftiSource(folder=str(tmp_path)))[0]] == ["Miller"]


def test_the_patient_stands_in_the_file_name(tmp_path: Path) -> None:
    saved(tmp_path, image(), "sub-07_adc.nii.gz")
    (study,), _ = read_nifti(NiftiSource(folder=str(tmp_path), patient=r"^sub-(\d+)_"))
    assert study.patient == "07"
    assert reason(tmp_path, patient=r"^case(\d+)") == "no_patient"


def test_one_patient_twice_on_one_grid_is_ambiguous_on_two_grids_two_studies(tmp_path: Path) -> None:
    path = saved(tmp_path / "a", image())
    (tmp_path / "b").mkdir()
    shutil.copy(path, tmp_path / "b" / "Miller.nii.gz")
    studies, rejected = read_nifti(NiftiSource(folder=str(tmp_path)))
    assert (len(studies), [found.reason for found in rejected]) == (0, ["ambiguous"] * 2)
    moved = AFFINE.copy()
    moved[:3, 3] += 5
    saved(tmp_path / "b", nibabel.Nifti1Image(VALUES, moved))
    assert len(read_nifti(NiftiSource(folder=str(tmp_path)))[0]) == 2


def test_wrong_settings_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 0 groups"):
        NiftiSource(folder=".", patient=".*")
    with pytest.raises(ValueError, match="no regular expression"):
        NiftiSource(folder=".", patient="(")
    with pytest.raises(ValueError, match="does not exist"):
        index_nifti(NiftiSource(folder=str(tmp_path / "gone")))
    with pytest.raises(ValueError, match=r"matches '\*\.nii\.gz'"):
        index_nifti(NiftiSource(folder=str(tmp_path)))


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 480), st.integers(0, 255)), min_size=1, max_size=8), st.booleans())
def test_no_damage_to_the_bytes_escapes(tmp_path: Path, edits: list[tuple[int, int]], packed: bool) -> None:
    data = bytearray(image().to_bytes())
    for where, value in edits:
        data[min(where, len(data) - 1)] = value
    (tmp_path / "Miller.nii.gz").write_bytes(gzip.compress(bytes(data)) if packed else bytes(data))
    studies, rejected = read_nifti(NiftiSource(folder=str(tmp_path)))
    assert len(studies) + len(rejected) == 1


def promising(shape: tuple[int, ...]) -> bytes:
    """A small file whose header promises more voxels than it has."""
    raw = bytearray(image().to_bytes())
    raw[40 : 40 + 2 * (1 + len(shape))] = np.array([len(shape), *shape], "<i2").tobytes()
    return bytes(raw)


@pytest.mark.parametrize("name", ["Miller.nii.gz", "Miller.nii"])
@pytest.mark.parametrize(("expected", "shape"), [("too_large", (30000, 30000, 30000)), ("unreadable", (600, 600, 600))])
def test_a_header_that_promises_too_much_takes_no_memory(
    tmp_path: Path, name: str, expected: str, shape: tuple[int, int, int]
) -> None:
    saved(tmp_path, promising(shape), name)
    tracemalloc.start()
    assert reason(tmp_path, pattern="*") == expected
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


def test_a_file_that_unpacks_to_far_more_than_an_image_is_refused_in_little_memory(tmp_path: Path) -> None:
    tmp_path.joinpath("Miller.nii.gz").write_bytes(gzip.compress(image().to_bytes() + bytes(200 * 2**20), 1))
    tracemalloc.start()
    assert reason(tmp_path) == "unreadable"
    assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    tracemalloc.stop()


def test_a_voxel_offset_outside_the_file_is_refused(tmp_path: Path) -> None:
    raw = bytearray(image().to_bytes())
    raw[108:112] = np.array([np.nan], "<f4").tobytes()
    saved(tmp_path, bytes(raw))
    assert reason(tmp_path) == "unreadable"
