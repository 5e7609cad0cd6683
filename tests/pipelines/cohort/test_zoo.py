"""Real odd files, each alone and in stacks: read rightly, or refused with the reason that this table names."""

from __future__ import annotations

import copy
import gzip
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileDataset

from pipelines.data.dicom.reader import index_dicom
from pipelines.data.index import Index, load_all
from pipelines.data.nifti.reader import index_nifti
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.study import Rejected, Study

SECONDS = 20  # for one file; most take milliseconds
PYDICOM_FILES = Path(pydicom.__file__).parent / "data" / "test_files"
NIBABEL_DICOM = Path(nibabel.__file__).parent / "nicom" / "tests" / "data"
NIBABEL_FILES = Path(nibabel.__file__).parent / "tests" / "data"


def table(rows: dict[str, str]) -> dict[str, str]:
    """File -> what becomes of it alone: the shape of a study, a reason, or ignored."""
    return {name: outcome for outcome, names in rows.items() for name in names.split()}


ZOO = table(
    {
        "single_slice": """
            ge_dwi/i22.MRDC.1 ge_dwi/i23.MRDC.2 ge_dwi/i24.MRDC.3 ge_dwi/i25.MRDC.4 ge_dwi/i26.MRDC.5
            ge_dwi/i27.MRDC.6 ge_dwi/i28.MRDC.7 ge_dwi/i29.MRDC.8 ge_dwi/i30.MRDC.9 ge_dwi/i31.MRDC.10
            ge_dwi/i32.MRDC.11 ge_dwi/i33.MRDC.12 ge_dwi/i34.MRDC.13 ge_dwi/i35.MRDC.14
            odd/MR-SIEMENS-DICOM-WithOverlays.dcm odd/MR2_J2KR.dcm odd/bad_sequence.dcm odd/explicit_VR-UN.dcm
            odd/parametric_map_float.dcm
        """,
        "missing_tag": "odd/HTJ2KLossless_08_RGB.dcm odd/JLSL_16_15_1_1F.dcm odd/JPEG-LL.dcm",
        "colour": "odd/US1_J2KR.dcm",
        "multi_frame": "odd/emri_small_big_endian.dcm odd/emri_small_jpeg_2k_lossless_too_short.dcm",
        "not_an_image": "odd/liver_deflate.dcm odd/liver_nonbyte_aligned_rle.dcm",
        "several_volumes": "philips_enhanced/IM_0027_fMAP.dcm",
        "(64, 64, 6)": """
            siemens_enhanced_xa10/6_1.dcm siemens_enhanced_xa10/6_2.dcm siemens_enhanced_xa10/6_3.dcm
            siemens_enhanced_xa10/6_4.dcm
        """,
        "mosaic": """
            siemens_mosaic/IM-0003-0001.dcm siemens_mosaic/IM-0003-0002.dcm siemens_mosaic/IM-0003-0003.dcm
            siemens_mosaic/IM-0003-0004.dcm siemens_mosaic/IM-0003-0005.dcm siemens_mosaic/IM-0003-0006.dcm
            siemens_series/epi_pe_ap-00001.dcm siemens_series/epi_pe_ap-00002.dcm transfer_syntaxes/1.dcm
            transfer_syntaxes/2.dcm transfer_syntaxes/3.dcm transfer_syntaxes/4.dcm transfer_syntaxes/5.dcm
            transfer_syntaxes/6.dcm transfer_syntaxes/7.dcm transfer_syntaxes/8.dcm transfer_syntaxes/9.dcm
        """,
        "ignored": "siemens_series/README-Series.txt",
    }
)
PYDICOM = table(
    {
        "lossy": "693_J2KI.dcm JPEG-lossy.dcm JPEG2000-embedded-sequence-delimiter.dcm JPEG2000.dcm JPGExtended.dcm",
        "single_slice": """
            CT_small.dcm J2K_pixelrep_mismatch.dcm MR_small.dcm MR_small_RLE.dcm MR_small_bigendian.dcm
            MR_small_expb.dcm MR_small_implicit.dcm MR_small_jp2klossless.dcm MR_small_jpeg_ls_lossless.dcm
            MR_small_padded.dcm MR_truncated.dcm dicomdirtests/77654033/CT2/17106 dicomdirtests/77654033/CT2/17136
            dicomdirtests/77654033/CT2/17166 dicomdirtests/77654033/CT2/17196 dicomdirtests/98892001/CT2N/6293
            dicomdirtests/98892001/CT2N/6924 dicomdirtests/98892001/CT5N/2062 dicomdirtests/98892001/CT5N/2392
            dicomdirtests/98892001/CT5N/2693 dicomdirtests/98892001/CT5N/3023 dicomdirtests/98892001/CT5N/3353
            dicomdirtests/98892003/MR1/15820 dicomdirtests/98892003/MR1/4919 dicomdirtests/98892003/MR1/5641
            dicomdirtests/98892003/MR2/15970 dicomdirtests/98892003/MR2/4950 dicomdirtests/98892003/MR2/4981
            dicomdirtests/98892003/MR2/5011 dicomdirtests/98892003/MR2/6273 dicomdirtests/98892003/MR2/6605
            dicomdirtests/98892003/MR2/6935 dicomdirtests/98892003/MR700/4467 dicomdirtests/98892003/MR700/4528
            dicomdirtests/98892003/MR700/4558 dicomdirtests/98892003/MR700/4588 dicomdirtests/98892003/MR700/4618
            dicomdirtests/98892003/MR700/4648 dicomdirtests/98892003/MR700/4678 examples_overlay.dcm
        """,
        "colour": """
            ExplVR_BigEnd.dcm GDCMJ2K_TextGBR.dcm SC_jpeg_no_color_transform.dcm SC_jpeg_no_color_transform_2.dcm
            SC_rgb_dcmtk_+eb+cr.dcm SC_rgb_dcmtk_+eb+cy+n1.dcm SC_rgb_dcmtk_+eb+cy+n2.dcm SC_rgb_dcmtk_+eb+cy+np.dcm
            SC_rgb_dcmtk_+eb+cy+s2.dcm SC_rgb_dcmtk_+eb+cy+s4.dcm SC_rgb_gdcm_KY.dcm SC_rgb_jpeg.dcm
            SC_rgb_jpeg_app14_dcmd.dcm SC_rgb_jpeg_dcmd.dcm SC_rgb_jpeg_dcmtk.dcm SC_rgb_jpeg_gdcm.dcm
            SC_rgb_jpeg_lossy_gdcm.dcm SC_rgb_rle.dcm SC_rgb_rle_16bit.dcm SC_rgb_rle_32bit.dcm SC_rgb_small_odd.dcm
            SC_rgb_small_odd_big_endian.dcm SC_rgb_small_odd_jpeg.dcm SC_ybr_full_422_uncompressed.dcm
            examples_jpeg2k.dcm examples_palette.dcm examples_rgb_color.dcm
        """,
        "unreadable": "no_meta.dcm",
        "packed": "zipMR.gz",
        "missing_tag": """
            JPEGLSNearLossless_08.dcm JPEGLSNearLossless_16.dcm SC_rgb_jls_lossy_line.dcm
            SC_rgb_jls_lossy_sample.dcm UN_sequence.dcm dicomdirtests/77654033/CR1/6154
            dicomdirtests/77654033/CR2/6247 dicomdirtests/77654033/CR3/6278 empty_charset_LEI.dcm image_dfl.dcm
            meta_missing_tsyntax.dcm nested_priv_SQ.dcm no_meta_group_length.dcm priv_SQ.dcm
        """,
        "ignored": """
            README.txt crayons.icc dicomdirtests/DICOMDIR dicomdirtests/DICOMDIR-bigEnd
            dicomdirtests/DICOMDIR-empty.dcm dicomdirtests/DICOMDIR-implicit dicomdirtests/DICOMDIR-nooffset
            dicomdirtests/DICOMDIR-nopatient dicomdirtests/DICOMDIR-reordered dicomdirtests/README.txt
            dicomdirtests/TINY_ALPHA/DICOMDIR dicomdirtests/TINY_ALPHA/README rtplan.dump rtstruct.dump test1.json
            test_PN.json
        """,
        "multi_frame": """
            SC_rgb_rle_16bit_2frame.dcm SC_rgb_rle_2frame.dcm SC_rgb_rle_32bit_2frame.dcm examples_ybr_color.dcm
        """,
        "not_an_image": """
            rtdose_1frame.dcm rtdose_expb_1frame.dcm rtdose_rle_1frame.dcm rtdose.dcm rtdose_expb.dcm rtdose_rle.dcm
            badVR.dcm liver_1frame.dcm liver_expb_1frame.dcm reportsi.dcm reportsi_with_empty_number_tags.dcm rtplan.dcm
            rtplan_truncated.dcm test-SR.dcm waveform_ecg.dcm
            ExplVR_BigEndNoMeta.dcm ExplVR_LitEndNoMeta.dcm rtstruct.dcm
        """,
    }
)
NIBABEL = table(
    {
        "mosaic": "0.dcm 1.dcm csa_slice_norm.dcm",
        "ignored": """
            ascconv_sample.txt csa2_b0.bin csa2_b1000.bin csa2_zero_len.bin.gz csa_str_1001n_items.bin
            csa_str_valid.bin
        """,
        "packed": "philips_mprage.dcm.gz siemens_dwi_0.dcm.gz siemens_dwi_1000.dcm.gz",
        "missing_tag": "decimal_rescale.dcm",
        "single_slice": "slicethickness_empty_string.dcm",
    }
)
PHI = table(
    {
        "burned_in": "GREYSCALE_IMAGE.dcm",
        "colour": "ctbrain1.dcm ctbrain2.dcm image1.dcm image2.dcm image3.dcm image4.dcm",
    }
)

NIFTI = table(
    {
        "(33, 41, 25)": "anatomical.nii",
        "(21, 26, 22)": "reoriented_anat_moved.nii",
        "(17, 21, 3)": "resampled_anat_moved.nii",
        "(4, 5, 7)": "standard.nii.gz",
        "four_d": "example_nifti2.nii.gz example4d.nii.gz functional.nii row_major.dconn.nii",
    }
)


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    """A file that takes longer ends the whole run."""
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


def told(index: Index) -> str:
    studies, rejected = load_all(index)
    assert all(found.detail.endswith(".") and len(found.detail) > 30 for found in rejected)
    return " ".join([*(str(study.image.values.shape) for study in studies), *(found.reason for found in rejected)])


def outcome(folder: Path, path: Path) -> str:
    shutil.copy(path, folder / path.name)
    try:
        return told(index_dicom(DicomSource(folder=str(folder))))
    except ValueError as error:
        assert "no DICOM file below" in str(error)  # noqa: PT017
        return "ignored"


def below(root: Path) -> dict[str, Path]:
    files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if "__pycache__" not in name}


def check_table(root: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Files that another version of a package brings must end well too, in one way or another."""
    wrong = {}
    for number, (name, path) in enumerate(below(root).items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        signal.alarm(SECONDS)
        found = outcome(folder, path)
        if name in expected and found != expected[name]:
            wrong[name] = (found, expected[name])
    assert not wrong
    assert set(expected) & set(below(root))


def test_each_file_of_the_zoo(data: Path, tmp_path: Path) -> None:
    check_table(data / "dicom_zoo", ZOO, tmp_path)
    assert set(ZOO) == set(below(data / "dicom_zoo"))


def test_each_file_with_identifiers(data: Path, tmp_path: Path) -> None:
    check_table(data / "phi", PHI, tmp_path)


def test_each_file_of_pydicom(tmp_path: Path) -> None:
    check_table(PYDICOM_FILES, PYDICOM, tmp_path)


def test_each_dicom_file_of_nibabel(tmp_path: Path) -> None:
    check_table(NIBABEL_DICOM, NIBABEL, tmp_path)


@pytest.mark.parametrize("name", ["siemens_dwi_0", "siemens_dwi_1000"])
def test_packed_mosaics_of_nibabel(tmp_path: Path, name: str) -> None:
    (tmp_path / "0.dcm").write_bytes(gzip.decompress((NIBABEL_DICOM / f"{name}.dcm.gz").read_bytes()))
    assert told(index_dicom(DicomSource(folder=str(tmp_path)))) == "mosaic"


def test_each_file_of_nibabel_read_as_nifti(tmp_path: Path) -> None:
    seen = {name: path for name, path in below(NIBABEL_FILES).items() if not name.startswith(".")}
    for number, (name, path) in enumerate(seen.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(path, folder)
        signal.alarm(SECONDS)
        index = index_nifti(NiftiSource(folder=str(folder), pattern="*"))
        found = told(index)
        assert found == NIFTI.get(name, "unreadable"), name
        for candidate in index.candidates if found.startswith("(") else ():
            reference = nibabel.load(path)
            study = candidate.load()
            assert np.allclose(study.image.affine, reference.affine, atol=1e-4)
            expected = reference.get_fdata().reshape(study.image.values.shape)
            assert np.allclose(study.image.values, expected, rtol=1e-5, equal_nan=True)  # NaN is refused later


def test_a_folder_of_every_kind_of_file_ends_in_studies_and_reasons() -> None:
    index = index_dicom(DicomSource(folder=str(PYDICOM_FILES)))
    studies, rejected = load_all(index)
    assert (16, 16, 5) in {study.image.values.shape for study in studies}
    assert len(rejected) > 40
    assert {"gap", "mixed_orientation", "colour", "lossy", "multi_frame"} <= {found.reason for found in rejected}


def test_the_zoo_as_one_folder(data: Path) -> None:
    index = index_dicom(DicomSource(folder=str(data / "dicom_zoo")))
    studies, rejected = load_all(index)
    assert not studies  # the XA files are four time points of one series
    assert Counter(found.reason for found in rejected)["several_volumes"] == 3
    assert {found.study.split("/")[0] for found in rejected} == {path.name for path in (data / "dicom_zoo").iterdir()}


def placed_pixel(dataset: Dataset, column: int, row: int) -> np.ndarray:
    """Where a pixel lies, RAS mm, by the formula of DICOM PS3.3 C.7.6.2.1.1, written out."""
    along_row, along_column = np.array(dataset.ImageOrientationPatient, float).reshape(2, 3)
    down, across = (float(number) for number in dataset.PixelSpacing)
    lps = np.array(dataset.ImagePositionPatient, float) + along_row * across * column + along_column * down * row
    return lps * [-1, -1, 1]


def check_geometry(study: Study, datasets: list[FileDataset]) -> None:
    """Each file's corners and values must be found in one slice of the study."""
    columns, rows, slices = study.image.values.shape
    ends = (study.image.affine @ np.array([[0, 0, k, 1] for k in range(slices)]).T)[:3].T
    for dataset in datasets:
        k = int(np.argmin(np.linalg.norm(ends - placed_pixel(dataset, 0, 0), axis=1)))
        for column, row in ((0, 0), (columns - 1, 0), (0, rows - 1), (columns - 1, rows - 1)):
            found = (study.image.affine @ [column, row, k, 1])[:3]
            assert np.allclose(found, placed_pixel(dataset, column, row), atol=0.05)
        slope, intercept = float(dataset.get("RescaleSlope", 1)), float(dataset.get("RescaleIntercept", 0))
        assert np.allclose(study.image.values[:, :, k].T, dataset.pixel_array * slope + intercept, rtol=1e-5)


def stacked(folder: Path, path: Path) -> tuple[list[Study], list[Rejected], list[FileDataset]]:
    """Three copies of a real single image, 3 mm apart along its normal."""
    datasets = []
    for index in range(3):
        dataset = pydicom.dcmread(path)
        normal = np.cross(*np.array(dataset.ImageOrientationPatient, float).reshape(2, 3))
        moved = np.array(dataset.ImagePositionPatient, float) + 3 * index * normal
        dataset.ImagePositionPatient = [f"{value:.6f}" for value in moved]
        dataset.SOPInstanceUID = f"1.2.3.{index}"
        dataset.save_as(folder / f"{index}.dcm")
        datasets.append(copy.deepcopy(dataset))
    return *load_all(index_dicom(DicomSource(folder=str(folder)))), datasets


SINGLE = [name for name, reason in PYDICOM.items() if reason == "single_slice"]
ZOO_SINGLE = [name for name, reason in ZOO.items() if reason == "single_slice" and "map" not in name]
CUT_SHORT = {"MR_truncated.dcm"}


@pytest.mark.repeats(10)
@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_stack_of_a_real_image_has_its_values_and_lies_where_its_header_says(tmp_path: Path, name: str) -> None:
    if not (PYDICOM_FILES / name).is_file():
        pytest.skip(f"this pydicom has no {name}")
    studies, rejected, datasets = stacked(tmp_path, PYDICOM_FILES / name)
    if name in CUT_SHORT:
        assert [found.reason for found in rejected] == ["unreadable"]
        return
    assert not rejected
    check_geometry(studies[0], datasets)


ALIKE = re.compile(r"ge_dwi/(?!i22)")  # slices of one series


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if ALIKE.match(name) else ()) for name in ZOO_SINGLE]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_stack_of_an_image_of_the_zoo(data: Path, tmp_path: Path, name: str) -> None:
    studies, rejected, datasets = stacked(tmp_path, data / "dicom_zoo" / name)
    assert not rejected
    check_geometry(studies[0], datasets)


def test_prostatex_lies_where_its_headers_say(data: Path) -> None:
    root = data / "prostatex" / "dicom"
    index = index_dicom(DicomSource(folder=str(root), select={"ImageType": "ADC"}))
    assert len(index.candidates) == 2
    for candidate in index.candidates:
        study = candidate.load()
        folder = root / "/".join(study.study.split("/")[:2])
        check_geometry(study, [pydicom.dcmread(path) for path in folder.iterdir()])


def test_every_reason_in_the_code_is_explained() -> None:
    root = Path(__file__).parents[3]
    files = [path for room in ("data", "batch") for path in sorted((root / "pipelines" / room).rglob("*.py"))]
    code = "\n".join(path.read_text() for path in files)
    raised = set(re.findall(r"(?:Unusable\(|Rejected\([^()]*?,)\s*\"([a-z0-9_]+)\"", code))
    raised |= set(re.findall(r"\(\"(mixed_[a-z]+)\", \"", code))
    page = (root / "docs" / "reference" / "formats.md").read_text()
    explained = set(re.findall(r"^\| `([a-z0-9_]+)` \|", page.partition("## Reasons")[2], re.MULTILINE))
    assert len(raised) > 40
    assert raised - explained == set()
    assert {name for name in explained if f'"{name}"' not in code} == set()
