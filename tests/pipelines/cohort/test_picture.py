"""Pictures and their table: what a network sees, and what is not used and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.data.cohort import read_cohort, survey
from pipelines.data.images import Pictures
from pipelines.data.intake import ReadStudy, read_studies
from pipelines.data.pictures.reader import open_loose_pictures, open_pictures, read_picture
from pipelines.data.sources import PictureSource
from pipelines.data.study import Unusable

SHARES = {"train": 0.5, "validation": 0.2, "test": 0.3}


def picture(path: Path, values: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)
    return path


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["image,patient,site,label"]
    for number in range(12):
        picture(tmp_path / "pictures" / f"{number}.png", rng.integers(0, 256, (20, 30, 3), np.uint8))
        lines.append(f"{number}.png,P{number // 2},{'vienna' if number % 3 else 'graz'},{number % 2}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    return tmp_path


def source(hospital: Path, **options: object) -> PictureSource:
    return PictureSource(folder=str(hospital / "pictures"), table=str(hospital / "labels.csv"), **options)


def read(hospital: Path, images: Pictures | None = None, **options: object):
    return read_cohort(
        source(hospital, **options), None, images or Pictures(size=16), fractions=SHARES, seed=0, key=b"k" * 16
    )


def test_pictures_become_a_cohort_split_by_patient(hospital):
    cohort, rejected, facts, names, *_ = read(hospital)
    assert not rejected
    assert (cohort.images.shape, cohort.lesion.shape) == ((12, 3, 16, 16), (12, 0))
    assert (facts["patients"], facts["images"], facts["positives"], len(names)) == (6, 12, 6, 6)
    assert -1 <= float(cohort.images.min()) < float(cohort.images.max()) <= 1
    for patient in range(6):
        assert len(set(cohort.split[cohort.patient == patient].tolist())) == 1


def test_only_lines_of_this_site_are_used_and_watched(hospital):
    cohort, _, facts, *_ = read(hospital, where={"site": ("graz",)})
    assert (len(cohort.labels), facts["unselected_series"]) == (4, 8)
    graz = source(hospital, where={"site": ("graz",)})
    before = survey(graz, None)
    picture(hospital / "pictures" / "1.png", np.zeros((5, 5), np.uint8))  # vienna's
    assert survey(graz, None) == before
    picture(hospital / "pictures" / "0.png", np.zeros((5, 5), np.uint8))
    assert survey(graz, None)["digest"] != before["digest"]
    assert before["files"] == 5


def test_each_trouble_has_its_reason(hospital):
    table = (hospital / "labels.csv").read_text().splitlines()
    table[1] = "0.png,,graz,0"
    table[2] = "1.png,P0,vienna,maybe"
    table[3] = "2.png,P1,vienna,"
    table[4] = "gone.png,P1,vienna,1"
    table[5] = "../labels.csv,P2,vienna,1"
    table[6] = table[7]
    (hospital / "labels.csv").write_text("\n".join(table))
    (hospital / "pictures" / "7.png").write_bytes(b"\x89PNG broken")
    frames = [Image.new("L", (8, 8)), Image.new("L", (8, 8), 9)]
    frames[0].save(hospital / "pictures" / "8.png", save_all=True, append_images=frames[1:], format="TIFF")
    _, rejected, *_ = read(hospital)
    assert Counter(found.reason for found in rejected) == {
        "no_patient": 1,
        "bad_label": 1,
        "no_label": 1,
        "no_picture": 2,
        "duplicate_picture": 2,
        "unreadable": 1,
        "several_frames": 1,
    }


def test_a_picture_that_two_patients_claim_is_nobodys(hospital):
    """It would train under one of their labels and be tested under the other's; which one is right, nobody can say."""
    table = (hospital / "labels.csv").read_text().splitlines()
    table[1] = "11.png,P0,graz,0"
    (hospital / "labels.csv").write_text("\n".join(table))
    cohort, rejected, *_ = read(hospital)
    assert [found.reason for found in rejected] == ["duplicate_picture"] * 2
    assert len(cohort.labels) == 10


def test_a_line_that_cannot_be_read_keeps_its_number_and_its_reason(hospital):
    table = (hospital / "labels.csv").read_bytes().splitlines()
    table[3] += b",1"
    table[5] = table[5].replace(b"P", b"\xdc")
    table[7] = b'"' + table[7]
    (hospital / "labels.csv").write_bytes(b"\n".join(table))
    opened = open_pictures(source(hospital), Pictures(size=8))
    assert [(one.study, one.reason) for one in opened.rejected] == [(f"line {n}", "unreadable") for n in (3, 5, 7)]
    assert [one.study.split(":")[0] for one in opened.waiting[:4]] == ["line 1", "line 2", "line 4", "line 6"]
    assert (len(opened.items), opened.unselected) == (12 + 3, 0)  # three lines name no file, so three files no line
    assert open_pictures(source(hospital, where={"site": ("graz",)}), Pictures()).unselected == 12 - 3 - 3
    assert survey(source(hospital), None)["files"] == 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"table": "nowhere.csv"}, "cannot be read"),
        ({"image": "file"}, "no column file"),
        ({"where": {"town": ("x",)}}, "no column town"),
        ({"where": {"site": ("x",)}}, "none of 12 lines"),
        ({"folder": "nowhere"}, "does not exist"),
    ],
)
def test_wrong_settings_are_told(hospital, change, said):
    settings = {"folder": str(hospital / "pictures"), "table": str(hospital / "labels.csv"), **change}
    with pytest.raises(ValueError, match=said):
        open_pictures(PictureSource(**settings), Pictures())


@settings(max_examples=25)
@given(st.integers(0, 255), st.sampled_from(["L", "RGB", "RGBA", "P", "I;16", "LA", "CMYK"]), st.sampled_from([1, 3]))
def test_a_flat_picture_of_any_mode_keeps_its_brightness(tmp_path_factory, level, mode, channels):
    path = tmp_path_factory.mktemp("p") / ("x.tif" if mode == "CMYK" else "x.png")
    if mode == "I;16":
        Image.fromarray(np.full((9, 12), level * 257, np.uint16)).save(path)
    else:
        start = "L" if mode == "P" else "RGB"  # from RGB, PIL would take the nearest web colour
        Image.new("RGB", (12, 9), (level, level, level)).convert(start).convert(mode).save(path)
    found = read_picture(path, Pictures(size=8, channels=channels))
    assert found.shape == (channels, 8, 8)
    assert np.allclose(found, level / 127.5 - 1, atol=0.02)


def test_exif_turns_a_picture_upright_and_a_crop_keeps_the_middle(tmp_path):
    values = np.zeros((20, 40), np.uint8)
    values[:, 20:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    turned = read_picture(picture(tmp_path / "a.png", values, exif=exif), Pictures(size=8, channels=1))
    assert turned[0, 0, 0] == -1
    assert turned[0, -1, 0] == 1
    left, right = np.split(read_picture(tmp_path / "a.png", Pictures(size=8, channels=1, fit="crop"))[0], 2)
    assert (left.mean(), right.mean()) == pytest.approx((-1, 1))


def test_transparent_parts_are_black(tmp_path):
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[..., :3] = 255
    assert read_picture(picture(tmp_path / "a.png", clear), Pictures(size=8)).max() == -1


def test_making_smaller_is_averaging(tmp_path):
    values = np.random.default_rng(1).integers(0, 256, (32, 32), np.uint8)
    found = read_picture(picture(tmp_path / "a.png", values), Pictures(size=8, channels=1))
    assert np.allclose(found[0], values.reshape(8, 4, 8, 4).mean(axis=(1, 3)) / 127.5 - 1, atol=1e-5)


def test_a_picture_made_to_fill_the_memory_is_refused(tmp_path, monkeypatch):
    path = picture(tmp_path / "a.png", np.zeros((40, 40), np.uint8))
    monkeypatch.setattr("pipelines.data.pictures.pixels.LARGEST", 1000)
    with pytest.raises(Unusable, match="too_large"):
        read_picture(path, Pictures())


def test_loose_pictures_need_no_table(hospital):
    opened = open_loose_pictures(str(hospital), Pictures(size=8))
    assert len(opened.waiting) == 12
    assert [item.name for item in opened.items if item.state != "part"] == ["labels.csv"]
    (hospital / "empty").mkdir()
    with pytest.raises(ValueError, match="no picture"):
        open_loose_pictures(str(hospital / "empty"), Pictures())


def test_readers_change_neither_order_nor_content(hospital):
    waiting = open_pictures(source(hospital), Pictures(size=8)).waiting
    (hospital / "pictures" / "5.png").write_bytes(b"x")
    one, four = (list(read_studies(waiting, readers=readers)) for readers in (1, 4))
    assert [a.study for a in one] == [b.study for b in four] == [w.study for w in waiting]
    for a, b in zip(one, four, strict=True):
        assert type(a) is type(b)
        assert not isinstance(a, ReadStudy) or np.array_equal(a.examples.images, b.examples.images)


@pytest.mark.slow  # a smaller case: the folder is drafted in test_init, and its kind of table is read above
def test_dermatoscopy_of_three_hospitals(data):
    counts = {}
    for sites in (("rosendahl",), ("vidir_modern", "vienna_dias"), ("vidir_molemax",)):
        folder = str(data / "ham10000")
        opened = open_pictures(
            PictureSource(folder=folder, table=f"{folder}/labels.csv", where={"site": sites}), Pictures(size=32)
        )
        assert not opened.rejected
        counts[sites[0]] = len(opened.waiting)
        assert opened.waiting[0].read().examples.images.shape == (1, 3, 32, 32)
    assert counts == {"rosendahl": 1065, "vidir_modern": 1311, "vidir_molemax": 2687}
