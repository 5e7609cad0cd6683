"""Names are found however they are spelled or joined, and nothing else is taken for one."""

from __future__ import annotations

import io

import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from dicom_with_identifiers import KEY, file_of, image
from privacy.deidentify.dicom_image import NotDeidentifiable, as_bytes, deidentify_image
from privacy.deidentify.identifiers import find_identifiers
from privacy.deidentify.leftovers import find_leftovers
from privacy.deidentify.spelling import compact_text, fold_text, joined_names

KANJI = "Yamada^Tarou=山田^太郎=やまだ^たろう"


def named(name: str, **more: object) -> Dataset:
    return image(PatientName=name, ReferringPhysicianName="Quack^Donald", **more)


def cleaned(dataset: Dataset) -> Dataset:
    return pydicom.dcmread(io.BytesIO(as_bytes(deidentify_image(dataset, key=KEY))))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (KANJI, "山田太郎の病変"),
        (KANJI, "山田"),
        (KANJI, "太郎山田"),
        (KANJI, "ヤマダ たろう"),
        ("Wang^Xiaodong=王^小東", "王小東"),
        ("Wang^Xiaodong=王^小東", "患者小東"),
        ("Hong^Gildong=洪^吉洞=홍^길동", "홍길동님"),
        ("Иванов^Пётр", "ИВАНОВА"),
        ("Иванов^Пётр", "для ПЕТР2"),
        ("Παπαδόπουλος^Γ", "ΠΑΠΑΔΟΠΟΥΛΟΥ ΠΑΠΑΔΟΠΟΥΛΟΣ"),
        ("राम^कुमार", "रामकुमार"),
    ],
)
def test_names_in_other_scripts_are_found_within_words(name, text) -> None:
    found = cleaned(named(name, FrameLabel=text, SegmentLabel="Läsion 1 病変"))
    assert found.FrameLabel == "REMOVED" and found.SegmentLabel == "Läsion 1 病変"


@pytest.mark.parametrize("charset", ["ISO_IR 192", "GB18030", ["", "ISO 2022 IR 87"]])
@pytest.mark.parametrize("text", ["山田太郎の病変", "山田"])
def test_names_in_other_scripts_are_found_in_every_character_set(charset, text) -> None:
    dataset = named("Yamada^Tarou=山田^太郎", SpecificCharacterSet=charset, FrameLabel=text)
    assert text.encode() not in file_of(dataset) or charset == "ISO_IR 192"
    found = cleaned(dataset)
    assert found.FrameLabel == "REMOVED" and found.SpecificCharacterSet == "ISO_IR 192"


def test_a_physician_counts_as_much_as_a_patient() -> None:
    assert cleaned(image(ReferringPhysicianName="鈴木^一郎", FrameLabel="鈴木")).FrameLabel == "REMOVED"
    assert cleaned(image(OperatorsName="Li^X", FrameLabel="a Li")).FrameLabel == "REMOVED"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Wałęsa^Lech", "WALESA"),
        ("Jørgensen^Bo", "JORGENSEN"),
        ("Jørgensen^Bo", "JOERGENSEN"),
        ("Joergensen^Bo", "Jørgensen"),
        ("Bjørn^Bo", "BJORN"),
        ("Işık^Ali", "ISIK"),
        ("Yıldırım^Can", "YILDIRIM"),
        ("Đorđević^Ana", "DORDEVIC"),
        ("Đorđević^Ana", "Djordjevic"),
        ("Þórarinn^Jon", "THORARINN"),
        ("Strauß^Max", "STRAUSS"),
        ("Strauss^Max", "Strauß"),
        ("Göring^Max", "GOERING"),
        ("Ægir^Bo", "AEGIR"),
        ("Łukasz^Ola", "LUKASZ"),
        ("O'Neil^Sue", "ONEIL"),
        ("D'Angelo^Bo", "DANGELO"),
        ("De Wit^Jan", "DEWIT"),
        ("De Wit^Jan", "DEWITJAN"),
        ("De Wit^Jan", "JANDEWIT"),
        ("Lee^Ann", "LEEANN"),
        ("Lee^Ann", "ANNLEE_EP2D"),
        ("Li^Na", "LINA"),
        ("Li^Na", "LI NA"),
        ("Smit^Jan", "SMIT1"),
        ("Ng^Li", "NG"),
        ("Ng^Li", "NG_LI"),
        ("Ng^Li", "LI"),
    ],
)
def test_spellings_and_compounds_are_found_in_text_and_in_coded_words(name, text) -> None:
    found = cleaned(named(name, FrameLabel=text, SequenceName=f"x {text.lower()}", BodyPartExamined="PROSTATE"))
    assert found.FrameLabel == "REMOVED" and found.SequenceName == "REMOVED" and found.BodyPartExamined == "PROSTATE"
    if text.isascii():
        typed = cleaned(named(name, ImageType=["ORIGINAL", "PRIMARY", text.upper()], AcquisitionContrast=text.upper()))
        assert list(typed.ImageType) == ["ORIGINAL", "PRIMARY", "REMOVED"] and "AcquisitionContrast" not in typed


@pytest.mark.parametrize("name", ["Smith^John^^Mr", "Smith^J M", "Se^Rm", "Yes^No", "Phantom^Head", "Lind^A D"])
def test_coded_words_of_images_survive_names(name) -> None:
    kind = ["ORIGINAL", "PRIMARY", "M", "ND"]
    dataset = named(name, ImageType=kind, ScanningSequence="SE", LossyImageCompression="NO", Modality="MR")
    found = cleaned(dataset)
    assert (list(found.ImageType), found.ScanningSequence, found.LossyImageCompression, found.Modality) == (
        kind, "SE", "NO", "MR",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["DIFFUSION\\ADC\\NORM", "DERIVED\\SECONDARY\\TRACEW\\M_SE\\DIS2D", "AXIAL\\MPR\\T2"])
@pytest.mark.parametrize("name", ["Li^Na", "Lee^Ann", "De Wit^Jan", "Ma^Tra", "O'Neil^Sue", "Rima^P", KANJI])
def test_standard_image_types_survive_short_names(name, kind) -> None:
    assert list(cleaned(named(name, ImageType=kind.split("\\"))).ImageType) == kind.split("\\")


@pytest.mark.parametrize("name", ["Иванов^Пётр", "Παπαδόπουλος^Γ", "Hong^Gildong=洪^吉洞=홍^길동", "ณัฐพงษ์^สมชาย"])
def test_a_name_in_another_script_is_no_reason_to_refuse(name) -> None:
    dataset = named(name)
    assert find_leftovers(dataset, as_bytes(deidentify_image(dataset, key=KEY))) == []


@pytest.mark.parametrize("text", ["山田太郎の病変", "山田", "太郎山田", "TAROUYAMADA"])
def test_the_second_opinion_sees_names_in_other_scripts_and_joined_ones(text) -> None:
    dataset = named(KANJI)
    left = deidentify_image(dataset, key=KEY)
    left.add_new(0x00209453, "LO", text)
    assert find_leftovers(dataset, as_bytes(left))


@given(st.text(st.characters(categories=("Lu", "Ll", "Lo", "Mn", "Nd")), max_size=12))
def test_folding_is_stable_whatever_the_case_and_the_form(text) -> None:
    assert fold_text(fold_text(text)) == fold_text(text)
    assert compact_text(text) == compact_text(fold_text(text))


@given(st.lists(st.text("abcdefgh", min_size=2, max_size=6), min_size=2, max_size=3, unique=True))
def test_a_slow_search_finds_no_pair_that_joining_misses(names) -> None:
    found = joined_names("^".join(names), frozenset())
    for one in names:
        for other in names:
            assert one == other or len(one + other) < 4 or one + other in found


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("SpecimenIdentifier", "SPX7714"),
        ("ContainerIdentifier", "CTX7714"),
        ("BarcodeValue", "BCX7714"),
        ("UniqueDeviceIdentifier", "UDIX7714"),
        ("PatientTelecomInformation", "0664555"),
    ],
)
def test_other_numbers_of_patients_are_identifiers(keyword, value) -> None:
    try:
        found = cleaned(image(**{keyword: value}, FrameLabel=f"a {value}"))
    except NotDeidentifiable:
        return
    assert found.FrameLabel == "REMOVED"


def test_a_short_uid_is_found_where_it_stands_alone() -> None:
    known = find_identifiers(image(StudyInstanceUID="1.2.3.4.5.77"))
    assert known.within("at 1.2.3.4.5.77") and not known.within("1.2.3.4.5.771") and not known.within("v1.2.3.4")
