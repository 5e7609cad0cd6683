"""What an image is, is known from its header, its name or a person, and never guessed from its values."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.multival import MultiValue
from pydicom.sequence import Sequence

from pipelines.data.dicom.reader import index_dicom, read_dicom
from pipelines.data.headers import text_of
from pipelines.data.images import Slices
from pipelines.data.index import load_candidate
from pipelines.data.quantity import SIGNALS, check_adc, decide_for_series, decide_from_headers, decide_from_text
from pipelines.data.sources import SOURCE, DicomSource
from pipelines.data.studies import convert_study_to_adc, index_volumes, open_studies
from pipelines.data.study import Study, Unusable
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.phantom.scanner import SCANNERS


def header(**values: object) -> Dataset:
    made = Dataset()
    for keyword, value in values.items():
        setattr(made, keyword, value)
    return made


def code(value: str, designator: str = "DCM") -> Dataset:
    return header(CodeValue=value, CodingSchemeDesignator=designator, CodeMeaning="meaning")


def unit(text: str) -> Dataset:
    return header(MeasurementUnitsCodeSequence=Sequence([code(text, "UCUM")]))


def quantity(value: str) -> Dataset:
    return header(
        QuantityDefinitionSequence=Sequence(
            [header(ConceptNameCodeSequence=Sequence([code("246205007", "SCT")]), ConceptCodeSequence=[code(value)])]
        )
    )


SIEMENS = {"ImageType": ["DERIVED", "PRIMARY", "DIFFUSION", "ADC", "DIS2D"], "SeriesDescription": "ep2d_diff_tra"}
MAPS = {
    "Siemens": SIEMENS,
    "GE": {"ImageType": ["DERIVED", "SECONDARY"], "SeriesDescription": "Apparent Diffusion Coefficient (mm2/s)"},
    "GE, shorter": {"ImageType": ["DERIVED", "SECONDARY", "OTHER"], "SeriesDescription": "ADC (10^-6 mm²/s)"},
    "Philips": {"ImageType": ["ORIGINAL", "PRIMARY", "ADC_UNSPECIFIED", "ADC", "UNSPECIFIED"]},
    "Philips, by its name": {"ImageType": ["DERIVED", "PRIMARY", "M", "SE"], "SeriesDescription": "dReg - dADC"},
    "enhanced": {"ImageType": ["DERIVED", "PRIMARY", "DIFFUSION", "ADC"], "Modality": "MR"},
    "a derivation code": {"DerivationCodeSequence": Sequence([code("113041")])},
    "a quantity": {"RealWorldValueMappingSequence": Sequence([quantity("113290")])},
    "a quantity in a functional group": {"QuantityDefinitionSequence": quantity("113041").QuantityDefinitionSequence},
    "a unit": {"RealWorldValueMappingSequence": Sequence([unit("um2/s")])},
    "a unit in a functional group": {"MeasurementUnitsCodeSequence": unit("mm2/s").MeasurementUnitsCodeSequence},
    "a rescale": {"RescaleType": "10^-6 mm^2/s", "SeriesDescription": "map 3"},
    "a lookup table": {"ModalityLUTSequence": Sequence([header(LUTExplanation="ADC 1e-6 mm2/s")])},
    "a protocol": {"ProtocolName": "ADC"},
    "French": {"SeriesDescription": "Coefficient de diffusion apparent"},
    "mono-exponential": {"SeriesDescription": "ADC mono-exponential b50-800"},
    "reformatted": {"ImageType": ["DERIVED", "SECONDARY", "MPR", "M", "ND"], "SeriesDescription": "ADC_b1000 MPR"},
}
OTHERS = {
    "trace": {"ImageType": ["DERIVED", "PRIMARY", "DIFFUSION", "TRACEW"], "SeriesDescription": "ep2d_diff_ADC_TRACEW"},
    "diffusion-weighted": {"ImageType": ["ORIGINAL", "PRIMARY", "DIFFUSION", "NONE"], "SeriesDescription": "ADC src"},
    "exponential": {"ImageType": ["DERIVED", "PRIMARY", "DIFFUSION", "EADC"]},
    "GE, exponential": {"SeriesDescription": "Exponential Apparent Diffusion Coefficient"},
    "exponential, short": {"SeriesDescription": "eADC"},
    "anisotropy": {"DerivationCodeSequence": Sequence([code("110808")]), "SeriesDescription": "ADC"},
    "a quantity of signal": {"RealWorldValueMappingSequence": Sequence([quantity("113043")])},
    "T2": {"ImageType": ["ORIGINAL", "PRIMARY", "OTHER"], "SeriesDescription": "t2_tse_tra"},
    "magnitude": {"ImageType": ["ORIGINAL", "PRIMARY", "M", "NORM"], "SeriesDescription": "prostate"},
    "b-value": {"SeriesDescription": "tra b1000"},
    "Philips, the source": {"ImageType": ["ORIGINAL", "PRIMARY", "M_SE", "M", "SE"], "SeriesDescription": "DWI_ADC"},
    "GE, the source": {"ImageType": ["ORIGINAL", "PRIMARY", "OTHER"], "SeriesDescription": "Ax DWI + ADC"},
    "a protocol for both": {"SeriesDescription": "DWI", "ProtocolName": "DWI_ADC"},
    "CT": {"Modality": "CT", "SeriesDescription": "ADC"},
    "mask": {"SeriesDescription": "ADC mask"},
}
DOUBTS = (
    *("ADC fit error", "ADC R2 goodness of fit", "ADC std dev", "ADC residuals", "ADC residual", "ADC chi2"),
    *("ADC chi^2", "ADC chi-squared", "ADC confidence", "ADC sigma", "ADC variance", "Error of ADC", "ADC_stdev"),
    *("ADC standard deviation", "ADC std. dev.", "ADC_std_dev", "ADC uncertainty", "ADC R^2", "ADC r-squared"),
    *("Standard Deviation Apparent Diffusion Coefficient (mm2/s)", "ADC goodness-of-fit", "ADC RMSE", "ADC χ²"),
)
"""Descriptions of maps that a fit leaves beside the ADC map."""
SILENCE = {
    "nothing": {},
    "CADCAM": {"SeriesDescription": "CADCAM"},
    "a head of words": {"SeriesDescription": "MADCOW series 7"},
    "no unit": {"RescaleType": "US", "RealWorldValueMappingSequence": Sequence([unit("1")])},
    "a code of another scheme": {"DerivationCodeSequence": Sequence([code("113041", "99LOCAL")])},
    "original, and computed later": {"ImageType": ["ORIGINAL", "PRIMARY", "OTHER"], "SeriesDescription": "ADC"},
    "original": {"ImageType": ["ORIGINAL", "PRIMARY", "OTHER"], "SeriesDescription": "7"},
    "another contrast": {"ImageType": ["DERIVED", "SECONDARY"], "SeriesDescription": "t2_tse_tra reg to ADC"},
}


@pytest.mark.parametrize("name", MAPS)
def test_adc_maps_of_all_vendors_are_known_by_what_they_say(name: str) -> None:
    found = decide_from_headers(header(**MAPS[name]))  # type: ignore[arg-type]
    assert found.adc is True and " says " in found.evidence
    check_adc(found, declared=False, seen="")


@pytest.mark.parametrize("name", OTHERS)
def test_what_says_that_it_is_something_else_is_refused_even_if_a_person_named_a_unit(name: str) -> None:
    found = decide_from_headers(header(**OTHERS[name]))  # type: ignore[arg-type]
    assert found.adc is False
    for declared in (False, True):
        with pytest.raises(Unusable, match="says") as caught:
            check_adc(found, declared=declared, seen="")
        assert caught.value.reason == "not_adc"


@pytest.mark.repeats(30)
@pytest.mark.parametrize("known", [{}, SIEMENS, MAPS["a unit"], MAPS["a derivation code"], MAPS["a rescale"]])
@pytest.mark.parametrize("text", DOUBTS)
def test_how_well_a_map_fits_is_no_map_whatever_else_its_header_says(text: str, known: dict[str, object]) -> None:
    assert decide_from_text(text, "it").adc is False
    found = decide_from_headers(header(**known | {"SeriesDescription": text}))
    assert found.adc is False and text in found.evidence


@pytest.mark.parametrize(
    "text",
    ["ADC terror", "ADC std protocol distortion corrected", "ADC chip", "ADC SIGNA", "ADC map r20", "ADC confident"],
)
def test_a_word_in_another_word_is_no_doubt(text: str) -> None:
    assert decide_from_headers(header(**SIEMENS | {"SeriesDescription": text})).adc is True


@pytest.mark.parametrize("name", SILENCE)
def test_silence_needs_a_person(name: str) -> None:
    found = decide_from_headers(header(**SILENCE[name]))  # type: ignore[arg-type]
    assert found.adc is None
    check_adc(found, declared=True, seen="")
    with pytest.raises(Unusable, match="--unit") as caught:
        check_adc(found, declared=False, seen="")
    assert caught.value.reason == "not_adc"


@settings(max_examples=300)
@given(st.text(st.sampled_from("abcdxADC _-19."), max_size=14))
def test_a_word_counts_only_if_it_stands_alone(text: str) -> None:
    found = decide_from_text(text, "it")
    alone = any(
        not text[at - 1 : at].isalpha() and not text[at + 3 : at + 4].isalpha()
        for at in range(len(text))
        if text[at : at + 3].lower() == "adc"
    )
    if alone:
        assert found.adc is True
    elif found.adc:
        assert "dadc" in text.lower()  # as Philips calls it


@given(st.lists(st.sampled_from(sorted(SIGNALS)), min_size=1, max_size=3), st.booleans())
def test_machine_words_decide_whatever_their_order(words: list[str], adc: bool) -> None:
    kind = MultiValue(str, ["DERIVED", "PRIMARY", *words, *(["ADC"] if adc else [])])
    assert decide_from_headers({"ImageType": kind}).adc is adc


def test_a_series_is_a_map_if_all_of_its_images_are() -> None:
    yes, no, unsaid = (decide_from_headers(header(**found)) for found in (SIEMENS, OTHERS["T2"], SILENCE["nothing"]))
    assert decide_for_series([yes, yes]).adc is True
    assert decide_for_series([unsaid, unsaid]).adc is None
    assert decide_for_series([unsaid, no]).adc is False
    mixed = decide_for_series([yes, no, yes])
    assert mixed.adc is False and mixed.evidence.startswith("1 of 3 images are no ADC map")
    assert decide_for_series([yes, unsaid]).adc is False


def test_what_is_admitted_tells_no_more_of_a_description_than_its_word() -> None:
    found = decide_from_headers({"SeriesDescription": "ADC Miller John"})
    assert found == (True, "SeriesDescription says ADC")


# -- real series ------------------------------------------------------------------------------------------------------


def kinds(folder: Path) -> dict[str, bool]:
    """SeriesInstanceUID -> whether it is an ADC map, by the one header that every archive of these files has."""
    found: dict[str, bool] = {}
    for candidate in index_dicom(DicomSource(folder=str(folder))).candidates:
        if candidate.stack is not None:
            first = candidate.stack.volumes[0][0].values
            found[candidate.study] = "ADC" in text_of(first.get("ImageType")).split("\\")
    return found


SELECTIONS: tuple[dict[str, str], ...] = (
    {},
    {"ImageType": "ADC"},
    {"SeriesDescription": "t2"},
    {"SeriesDescription": "diff"},
    {"SequenceName": "b50t"},
    {"SequenceName": "b800t"},
    {"Modality": "MR"},
    {"ImageType": "PRIMARY"},
)
SOME = {"prostatex/dicom": ({}, {"SeriesDescription": "t2"}), "dicom_zoo": ({"Modality": "MR"},), "phi": ({},)}
"""What the default suite selects, with a unit that a person named: everything, or one kind of image."""


def taken(source: DicomSource) -> set[str]:
    """Series that become ADC."""
    with suppress(ValueError):  # nothing matches `select`
        studies = [load_candidate(candidate) for candidate in index_volumes(source, adc=True).candidates]
        used = [as_used(study, source) for study in studies if isinstance(study, Study)]
        assert all(study is None or ("says" in study.evidence and study.percentiles) for study in used)
        return {study.study for study in used if study is not None}
    return set()


def as_used(study: Study, source: DicomSource) -> Study | None:
    with suppress(Unusable):
        return convert_study_to_adc(study, source)[0]
    return None


@pytest.mark.parametrize("place", ["prostatex/dicom", "dicom_zoo", "phi"])
def test_of_real_series_only_adc_maps_are_taken_for_adc_whatever_is_selected(
    data: Path, place: str, thorough: bool
) -> None:
    folder = data / place
    if not folder.is_dir():
        pytest.skip(f"no {place} below {data}")
    maps = {study for study, adc in kinds(folder).items() if adc}
    assert len(maps) == (2 if place.startswith("prostatex") else 0)
    assert taken(DicomSource(folder=str(folder))) == maps
    for select in SELECTIONS if thorough else SOME[place]:
        for declared in ("auto", "1e-6 mm2/s") if thorough else ("1e-6 mm2/s",):
            assert taken(DicomSource(folder=str(folder), select=select, unit=declared)) <= maps  # type: ignore[arg-type]


def test_prostatex_says_how_it_is_known(data: Path) -> None:
    folder = data / "prostatex" / "dicom"
    if not folder.is_dir():
        pytest.skip(f"no ProstateX below {data}")
    opened = open_studies(DicomSource(folder=str(folder)), None, Slices(), None)
    assert Counter(one.reason for one in opened.rejected) == {"not_adc": 4}
    said = " ".join(one.detail for one in opened.rejected)
    assert "'t2_tse_tra'" in said and "TRACEW" in said and "derive: adc" in said
    first, second = (one.read() for one in sorted(opened.waiting, key=lambda one: one.patient))
    assert first.evidence == (
        "ImageType says ADC; unit inferred, 1e-6 mm2/s: values at 1, 50, 99 % are 61, 1179, 2919 x 1e-6 mm2/s"
    )
    assert second.percentiles == pytest.approx((37, 1082, 3276), abs=1)


@pytest.mark.parametrize("scanner", sorted(SCANNERS))
@pytest.mark.parametrize("form", ["dicom", "nifti"])
def test_phantoms_say_what_they_are(tmp_path: Path, scanner: str, form: str) -> None:
    source = PhantomSource(scanner=scanner, patients=2, seed=3, format=form)  # type: ignore[arg-type]
    write(source, tmp_path / "p")
    settings_ = {"kind": form, "folder": str(tmp_path / "p" / "images")}
    opened = open_studies(SOURCE.validate_python(settings_), None, Slices(), None)  # type: ignore[arg-type]
    assert not opened.rejected and len(opened.waiting) == 2
    for one in opened.waiting:
        admitted = one.read()
        assert "says" in admitted.evidence and admitted.percentiles is not None


def test_a_fit_is_its_own_evidence(data: Path) -> None:
    folder = data / "prostatex" / "dicom"
    if not folder.is_dir():
        pytest.skip(f"no ProstateX below {data}")
    source = DicomSource(folder=str(folder), select={"ImageType": "DIFFUSION"}, derive="adc")
    opened = open_studies(source, None, Slices(), None)
    assert [one.read().evidence.partition(";")[0] for one in opened.waiting] == [
        "fitted here to b-values 50, 400, 800 s/mm2"
    ] * 2


def test_images_of_no_unit_are_not_asked(data: Path) -> None:
    folder = data / "prostatex" / "dicom"
    if not folder.is_dir():
        pytest.skip(f"no ProstateX below {data}")
    source = DicomSource(folder=str(folder), select={"SeriesDescription": "t2"})
    opened = open_studies(source, None, Slices(values="standardized"), None)
    assert len(opened.waiting) == 2 and not opened.rejected
    assert [one.read().percentiles for one in opened.waiting] == [None, None]
    assert len(read_dicom(source)[0]) == 2
