"""A header parsed once says what a header parsed twice says: pixels, their meaning, and every value of the index."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import nibabel
import pydicom
import pytest

from pipelines.data.contents import read_dataset
from pipelines.data.dicom.frames import PER_FRAME, read_frames
from pipelines.data.dicom.pixels import decode_real_values
from pipelines.data.dicom.reader import Decoders, read_planes
from pipelines.data.dicom.series import IDENTITY, PLACE, SHAPE
from pipelines.data.dicom.uncompressed import NEEDED
from pipelines.data.index import convert_read_errors
from pipelines.data.pseudonym import ALLOWED_HEADERS
from pipelines.data.quantity import HEADERS
from pipelines.data.study import Array, Unusable
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource

BUNDLED = Path(pydicom.__file__).parent / "data" / "test_files", Path(nibabel.__file__).parent / "nicom/tests/data"
KEYWORDS = (*IDENTITY, *PLACE, *SHAPE, *HEADERS, *ALLOWED_HEADERS, "PixelPaddingValue", "PatientName", "NoSuchKeyword")


def everywhere() -> list[Path]:
    shared = os.environ.get("CONSILIUM_DATA")
    roots = [*BUNDLED, *([Path(shared) / name for name in ("prostatex/dicom", "dicom_zoo", "phi")] if shared else [])]
    return sorted(path for root in roots if root.is_dir() for path in root.rglob("*") if path.is_file())


def outcome(read: Callable[[], Iterable[tuple[Array, str | None]]]) -> tuple[Any, ...]:
    """The values and unit of the first image, or the kind of error."""
    try:
        with convert_read_errors("file"):
            ((values, unit),) = read()
        return values.shape, values.tobytes(), unit
    except Unusable as error:
        return (error.reason,)


def test_pixels_read_where_they_lie_are_those_of_the_whole_file(tmp_path: Path) -> None:
    write(PhantomSource(scanner="P", patients=1, slices=4), tmp_path)
    ways: Counter[str] = Counter()
    decoders: Decoders = {}
    seen: dict[tuple[object, ...], Any] = {}
    for path in [*everywhere(), *tmp_path.rglob("*.dcm")]:
        try:
            with convert_read_errors(path.name):
                frames = read_frames(path, KEYWORDS, diffusion=False, seen=seen)
        except Unusable:
            continue
        if not frames or frames[0].pixels is None:
            ways["whole"] += 1
            continue
        ways["where they lie"] += 1
        where = frames[0].pixels
        here, whole = (
            partial(read_planes, path, where, [0], (), decoders),
            partial(decode_real_values, read_dataset(path)),
        )
        assert outcome(here) == outcome(whole), path.name
        if where.meaning in decoders:  # a second image is decoded by what the first one left
            assert outcome(here) == outcome(whole), path.name
    assert ways["where they lie"] > 40 and ways["whole"] > 40, ways
    assert 0 < len(decoders) < ways["where they lie"], "files of a series agree in what their pixels mean"


def test_a_value_that_another_file_had_is_the_value_of_the_file_itself() -> None:
    seen: dict[tuple[object, ...], Any] = {}
    count = 0
    for path in everywhere():
        try:
            with convert_read_errors(path.name):
                found = read_frames(path, KEYWORDS, diffusion=False, seen=seen)
                alone = read_frames(path, KEYWORDS, diffusion=False, seen={})
                whole = read_dataset(path, stop_before_pixels=True)
        except Unusable:
            continue
        assert [dict(one.values) for one in found] == [dict(one.values) for one in alone], path.name
        if len(found) == 1 and PER_FRAME not in whole:
            count += 1
            told = {k: str(v) for k in KEYWORDS if (v := whole.get(k)) is not None and str(v).strip() and v != []}
            assert {k: str(v) for k, v in found[0].values.items() if k in KEYWORDS} == told, path.name
    assert count > 80


def test_decoding_asks_for_nothing_that_was_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PhantomSource(scanner="P", patients=1, slices=4), tmp_path)
    (path, *_) = sorted(tmp_path.rglob("*.dcm"))
    asked: set[str] = set()
    whole = read_dataset(path)
    get = pydicom.dataset.Dataset.get

    def spied(self: Any, key: Any, *rest: Any) -> Any:
        asked.add(str(pydicom.datadict.keyword_for_tag(key) if not isinstance(key, str) else key))
        return get(self, key, *rest)

    monkeypatch.setattr(pydicom.dataset.Dataset, "get", spied)
    list(decode_real_values(whole))
    known = {keyword for keyword in asked if keyword in whole}
    assert known <= {*NEEDED, "PixelData", "NumberOfFrames", "CodeValue", "CodeMeaning"}, known - set(NEEDED)


@pytest.mark.parametrize("behind", [b"\0" * 8, b"\xfc\xff\xfc\xffOB\0\0\4\0\0\0abcd"])
def test_bytes_behind_the_pixels_are_parsed_as_before(tmp_path: Path, behind: bytes) -> None:
    write(PhantomSource(scanner="P", patients=1, slices=4), tmp_path)
    path, *_ = tmp_path.rglob("*.dcm")
    path.write_bytes(path.read_bytes() + behind)
    (frame,) = read_frames(path, KEYWORDS, diffusion=False, seen={})
    assert frame.pixels is None


def test_equal_bytes_in_two_alphabets_are_two_values(tmp_path: Path) -> None:
    write(PhantomSource(scanner="P", patients=1, slices=4), tmp_path)
    path, *_ = tmp_path.rglob("*.dcm")
    seen: dict[tuple[object, ...], Any] = {}
    told = []
    for charset in ("ISO_IR 144", "ISO_IR 100"):  # Cyrillic, Latin
        dataset = pydicom.dcmread(path)
        dataset.SpecificCharacterSet = charset
        dataset.SeriesDescription = b"\xbf\xe0".decode("iso8859_5" if charset.endswith("144") else "latin_1")
        dataset.save_as(tmp_path / "one.dcm")
        (frame,) = read_frames(tmp_path / "one.dcm", KEYWORDS, diffusion=False, seen=seen)
        told.append(frame.values["SeriesDescription"])
    assert told == ["Пр", "¿à"]
