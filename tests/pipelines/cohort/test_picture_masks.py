"""Label maps of pictures: what their values stand for, that they move with the picture, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from pydantic import ValidationError

from pipelines.data.cohort import from_message, read_cohort, to_message
from pipelines.data.images import IMAGES, Pictures
from pipelines.data.partition import Part
from pipelines.data.pictures.label_maps import Shown, open_maps, read_map, square_around
from pipelines.data.pictures.pixels import read_pair, read_picture
from pipelines.data.pictures.reader import open_loose_pictures, open_pictures
from pipelines.data.sources import SOURCE, PictureMasks, PictureSource
from pipelines.data.study import Unusable
from pipelines.data.survey import survey
from pipelines.models.translator_file import remove_places
from privacy.message import Message, from_bytes, to_bytes

SHARES = {"train": 0.5, "validation": 0.2, "test": 0.3}
KEY = b"k" * 16
DISC = {"disc": (255,)}


def save(path: Path, values: np.ndarray, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)
    return path


def disc(height: int, width: int, centre: tuple[float, float], radius: float) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    return ((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 <= radius**2).astype(np.uint8)


def masks(home: Path, values: dict[str, tuple[int, ...]] | None = None, **options: Any) -> PictureMasks:
    return PictureMasks(folder=str(home / "masks"), values=values or DISC, **options)


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Eight pictures, each white where its mask is 255; the disc wanders. The last picture has none."""
    lines = ["image,patient"]
    for number in range(8):
        found = disc(40, 60, (18 + number % 3, 25 + number), 8) * 255 * (number < 7)
        save(tmp_path / "pictures" / f"{number}.png", np.repeat(found[..., None].astype(np.uint8), 3, 2))
        save(tmp_path / "masks" / f"{number}.png", found.astype(np.uint8))
        lines.append(f"{number}.png,P{number}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return tmp_path


def source(home: Path, **options: Any) -> PictureSource:
    given = {"folder": str(home / "pictures"), "table": str(home / "table.csv"), "label": None, "masks": masks(home)}
    return PictureSource(**given | options)


def read(home: Path, images: Pictures | None = None, of: PictureSource | None = None, **options: Any) -> Any:
    given = {"fractions": SHARES, "seed": 0, "key": KEY, "target": "masks", "classes": ("disc",)}
    return read_cohort(of or source(home), None, images or Pictures(size=16), **given | options)


def pair(home: Path, images: Pictures, classes: tuple[str, ...] = (), **options: Any) -> tuple[np.ndarray, np.ndarray]:
    return read_pair(home / "pictures" / "a.png", images, open_maps(masks(home, **options), classes), "a.png")


# What a network sees


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4]))
def test_a_pixel_is_of_the_class_that_covers_most_of_it(tmp_path_factory, seed, factor):
    home, rng = tmp_path_factory.mktemp("m"), np.random.default_rng(seed)
    values = rng.integers(0, 3, (8 * factor, 8 * factor)).astype(np.uint8)
    save(home / "pictures" / "a.png", values)
    save(home / "masks" / "a.png", values)
    _, found = pair(home, Pictures(size=8), values={"disc": (1,), "cup": (2,)})
    blocks = values.reshape(8, factor, 8, factor).transpose(0, 2, 1, 3).reshape(8, 8, -1)
    counted = [[np.bincount(block, minlength=3).argmax() for block in row] for row in blocks]
    assert np.array_equal(found, counted)
    assert found.dtype == np.uint8


@settings(max_examples=60)
@given(
    st.integers(10, 70),
    st.integers(10, 70),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["squash", "crop", "around"]),
    st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]),
)
def test_a_mask_moves_with_its_picture(tmp_path_factory, height, width, seed, fit, turn):
    """A picture that is white where its mask is: whatever is done to both, it stays so."""
    home, rng = tmp_path_factory.mktemp("m"), np.random.default_rng(seed)
    centre = rng.uniform(0.2, 0.8, 2) * (height, width)
    values = disc(height, width, tuple(centre), rng.uniform(3, 12)) * np.uint8(255)
    values[int(centre[0]), int(centre[1])] = 255
    exif = Image.Exif()
    exif[0x0112] = turn
    save(home / "pictures" / "a.png", values, exif=exif)
    save(home / "masks" / "a.png", values, exif=exif)
    images = Pictures(size=16, channels=1, fit=fit, margin=1.5 if fit == "around" else None)
    picture, found = pair(home, images)
    sure = np.abs(picture[0]) > 0.02  # a crop rounds the picture to 8 bits before it is made smaller
    assert np.array_equal(found[sure] == 1, picture[0][sure] > 0)


@pytest.mark.parametrize("turn", [5, 6, 7, 8])
def test_a_mask_without_exif_is_taken_for_the_side_that_it_fits(tmp_path, turn):
    values = np.zeros((20, 40), np.uint8)
    values[2:6, 3:20] = 255
    exif = Image.Exif()
    exif[0x0112] = turn
    path = save(tmp_path / "pictures" / "a.png", values, exif=exif)
    save(tmp_path / "masks" / "a.png", values)  # drawn on the stored picture
    picture, stored = pair(tmp_path, Pictures(size=20, channels=1))
    with Image.open(path) as opened:
        ImageOps.exif_transpose(opened).save(tmp_path / "masks" / "a.png")  # drawn on the picture as it is shown
    shown = pair(tmp_path, Pictures(size=20, channels=1))[1]
    assert np.array_equal(stored, shown)
    assert np.array_equal(shown == 1, picture[0] > 0)


@pytest.mark.parametrize(("shape", "turn"), [((20, 40), 3), ((20, 40), 2), ((20, 20), 6)])
def test_a_mask_that_may_have_been_drawn_before_or_after_turning_is_refused(tmp_path, shape, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    save(tmp_path / "pictures" / "a.png", np.zeros(shape, np.uint8), exif=exif)
    save(tmp_path / "masks" / "a.png", np.zeros(shape, np.uint8))
    with pytest.raises(Unusable, match="mask_turned"):
        pair(tmp_path, Pictures(size=8))


@settings(max_examples=60)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20), st.integers(1, 20), st.floats(1, 3))
def test_the_square_is_about_the_middle_of_what_the_mask_shows(row, column, height, width, margin):
    found = np.zeros((60, 60), np.uint8)
    found[row : row + height, column : column + width] = 2
    left, upper, right, lower = square_around(found, margin)
    assert right - left == lower - upper == max(1, round(margin * max(height, width)))
    assert abs((left + right) / 2 - (column + width / 2)) <= 0.5
    assert abs((upper + lower) / 2 - (row + height / 2)) <= 0.5


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 20), st.floats(1, 3), st.floats(0.01, 0.9), st.text())
def test_jitter_moves_the_square_by_what_the_name_says_and_keeps_it_inside(row, column, size, margin, jitter, name):
    found = np.zeros((60, 70), np.uint8)
    found[row : row + size, column : column + size] = 1
    left, upper, right, lower = square_around(found, margin, jitter, name)
    side = right - left
    assert side == lower - upper
    assert min(60, margin * size * (1 - jitter) - 1) <= side <= max(1, margin * size * (1 + jitter) + 1)
    assert 0 <= left < right <= 70
    assert 0 <= upper < lower <= 60
    assert square_around(found, margin, jitter, name) == (left, upper, right, lower)
    for first, last, middle, length in ((left, right, column + size / 2, 70), (upper, lower, row + size / 2, 60)):
        free = first > 0 and last < length
        assert not free or abs((first + last) / 2 - middle) <= jitter * size + 1


def test_pictures_of_other_names_are_cut_elsewhere():
    found = np.zeros((200, 200), np.uint8)
    found[90:110, 90:110] = 1
    assert len({square_around(found, 1.5, 0.2, str(number)) for number in range(20)}) > 15


def test_around_makes_fields_of_view_alike_and_what_is_beyond_is_black(tmp_path):
    """A disc of 20 pixels in a large picture, and one of 60 that nearly fills its own."""
    seen = []
    for name, side, radius in (("far", 200, 10), ("near", 66, 30)):
        values = disc(side, side, (side / 2 - 0.5, side / 2 - 0.5), radius) * np.uint8(200) + np.uint8(55)
        save(tmp_path / name / "pictures" / "a.png", values)
        save(tmp_path / name / "masks" / "a.png", (values > 55) * np.uint8(255))
        seen.append(pair(tmp_path / name, Pictures(size=32, channels=1, fit="around", margin=1.25)))
        assert seen[-1][1].mean() == pytest.approx(np.pi / 4 / 1.25**2, rel=0.05)
    (far, one), (near, two) = seen
    assert (one != two).mean() < 0.03
    assert far[0, 0, 0] == pytest.approx(55 / 127.5 - 1, abs=1e-5)
    assert near[0, 0, 0] < far[0, 0, 0]  # 75 pixels were cut out of 66
    assert pair(tmp_path / "near", Pictures(size=32, channels=1, fit="around", margin=3))[0][0, 0, 0] == -1


def test_hospitals_of_other_codes_have_the_same_classes(tmp_path):
    """One codes disc and cup as 1 and 2; one as 128 and 255; some learn the disc, or the cup, alone."""
    values = disc(32, 32, (16, 16), 12) + disc(32, 32, (16, 16), 5)
    save(tmp_path / "pictures" / "a.png", values)
    save(tmp_path / "masks" / "a.png", values)
    size = Pictures(size=32)
    both = pair(tmp_path, size, ("disc", "cup"), values={"disc": (1,), "cup": (2,)})[1]
    other = pair(tmp_path, size, ("cup", "disc"), values={"disc": (1,), "cup": (2,)})[1]
    assert np.array_equal(np.array([0, 2, 1])[other], both)
    alone = pair(tmp_path, size, ("disc",), values={"disc": (1, 2)})[1]
    assert np.array_equal(alone, both > 0)
    cup = pair(tmp_path, size, ("cup",), values={"background": (0, 1), "cup": (2,)})[1]
    assert np.array_equal(cup, both == 2)
    save(tmp_path / "masks" / "a.png", np.array([0, 128, 255], np.uint8)[values])
    assert np.array_equal(pair(tmp_path, size, ("disc", "cup"), values={"cup": (255,), "disc": (128,)})[1], both)


@pytest.mark.parametrize("mode", ["L", "1", "RGB", "RGBA", "LA", "I;16", "P"])
def test_one_number_a_pixel_may_be_stored_in_any_way(tmp_path, mode):
    values = disc(16, 16, (8, 8), 5)
    save(tmp_path / "pictures" / "a.png", values)
    high = {"1": 1, "P": 1}.get(mode, 255)
    if mode == "I;16":
        save(tmp_path / "masks" / "a.png", values.astype(np.uint16) * 255)
    elif mode == "P":
        made = Image.fromarray(values, "P")
        made.putpalette([0, 0, 0, 255, 255, 255])
        made.save(save(tmp_path / "masks" / "a.png", values))
    else:
        Image.fromarray(values * 255).convert(mode).save(save(tmp_path / "masks" / "a.png", values))
    assert np.array_equal(pair(tmp_path, Pictures(size=16), values={"disc": (high,)})[1], values)


# What is not used


def test_each_trouble_of_a_mask_has_its_reason(hospital):
    (hospital / "masks" / "0.png").unlink()
    save(hospital / "masks" / "1.png", np.zeros((40, 61), np.uint8))
    save(hospital / "masks" / "2.png", np.full((40, 60), 128, np.uint8))
    (hospital / "masks" / "3.png").write_bytes(b"\x89PNG broken")
    save(hospital / "masks" / "4.png", np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    _, rejected, *_ = read(hospital, Pictures(size=16, fit="around", margin=1.5))
    assert Counter(found.reason for found in rejected) == {
        "no_mask": 1,
        "mask_size": 1,
        "mask_value": 1,
        "bad_mask": 2,
        "empty_mask": 1,  # the last picture's
    }
    assert all(found.detail.endswith(".") or found.reason == "bad_mask" for found in rejected)


def test_a_mask_outside_its_folder_is_none(hospital):
    maps = open_maps(masks(hospital, pattern="../pictures/{image}"), ())
    with pytest.raises(Unusable, match="no_mask"):
        read_map(maps, "0.png", Shown(Image.new("L", (60, 40)), (60, 40), 1))


def test_two_pictures_never_share_a_mask(hospital):
    """The same picture twice, in two formats, would be two patients: one may train and the other test."""
    Image.open(hospital / "pictures" / "0.png").save(hospital / "pictures" / "0.jpg")
    _, rejected, *_ = read(hospital, of=source(hospital, table=None))
    assert [found.reason for found in rejected] == ["ambiguous_mask"] * 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"values": {}}, "no class"),
        ({"values": {"background": [0]}}, "no class"),
        ({"values": {"disc": []}}, "disc: empty"),
        ({"values": {"disc": [1, 2], "cup": [2]}}, r"\[2\] stand for several"),
        ({"values": {"disc": [0]}}, r"\[0\] stand for several"),
        ({"values": {"disc": [70000]}}, "found \\[70000\\]"),
        ({"values": {"disc": 1}}, "tuple"),
        ({"pattern": "mask.png"}, "none of"),
        ({"threshold": 1}, "Unexpected keyword"),
    ],
)
def test_wrong_settings_of_masks_are_told(change, said):
    plain = {
        "kind": "picture",
        "folder": "f",
        "table": None,
        "masks": {"folder": "m", "values": {"disc": [1]}} | change,
    }
    with pytest.raises(ValidationError, match=said):
        SOURCE.validate_json(json.dumps(plain), strict=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"masks": None}, "table: missing.*; label: missing"), ({"where": {"site": ("x",)}}, "where: there is no table")],
)
def test_only_pictures_with_masks_need_no_table(change, said):
    given = {"folder": "f", "table": None, "label": None, "masks": PictureMasks(folder="m", values=DISC)}
    with pytest.raises(ValueError, match=said):
        PictureSource(**given | change)


@pytest.mark.parametrize("options", [{"fit": "around"}, {"margin": 1.5}, {"fit": "around", "margin": 0.5}])
def test_a_margin_goes_with_around(options):
    with pytest.raises(ValueError, match="margin"):
        Pictures(**options)


def test_what_is_to_be_learnt_must_be_named_alike(hospital):
    for classes, said in (
        (("disc", "cup"), "name disc, and disc, cup are to be learnt"),
        ((), "classes: missing"),
    ):
        with pytest.raises(ValueError, match=said):
            read(hospital, classes=classes)
    bare = PictureSource(folder=str(hospital / "pictures"), table=str(hospital / "table.csv"), label="patient")
    for images, target in ((Pictures(), "masks"), (Pictures(fit="around", margin=2), None)):
        with pytest.raises(ValueError, match=r"source\.masks"):
            read(hospital, images, bare, target=target)
    with pytest.raises(ValueError, match=r"masks\.folder"):
        read(hospital, of=source(hospital, masks=PictureMasks(folder="nowhere", values=DISC)))
    with pytest.raises(ValueError, match="label may be null"):
        read(hospital, of=source(hospital, label="label"))
    with pytest.raises(ValueError, match="new pictures have none"):
        open_loose_pictures(str(hospital), Pictures(fit="around", margin=2))


# The cohort


def test_masks_come_into_the_cohort_in_the_order_of_its_examples(hospital):
    cohort, rejected, facts, names, *_ = read(hospital)
    assert not rejected
    assert (cohort.mask.shape, cohort.mask.dtype) == ((8, 16, 16), torch.uint8)
    assert torch.equal(cohort.mask == 1, cohort.images[:, 0] > 0)
    assert (facts["positives"], cohort.recipe["target"], cohort.recipe["classes"]) == (7, "masks", ["disc"])
    (empty,) = (number for number, name in enumerate(cohort.patients) if names[name] == "P7")
    assert cohort.labels.tolist() == [int(patient != empty) for patient in cohort.patient.tolist()]
    again = from_message(from_bytes(to_bytes(to_message(cohort))))
    assert torch.equal(again.mask, cohort.mask)


def test_labels_of_the_table_outrank_masks(hospital):
    lines = (hospital / "table.csv").read_text().splitlines()
    labelled = [f"{line},{'label' if not number else number % 2}" for number, line in enumerate(lines)]
    (hospital / "table.csv").write_text("\n".join(labelled))
    assert int(read(hospital, of=source(hospital, label="label")).cohort.labels.sum()) == 4


def test_a_cohort_without_masks_says_so_and_one_of_an_earlier_version_is_still_read(hospital):
    (hospital / "table.csv").write_text("image,patient,label\n0.png,P0,1\n1.png,P1,0\n2.png,P2,0")
    plain = PictureSource(folder=str(hospital / "pictures"), table=str(hospital / "table.csv"))
    cohort = read(hospital, of=plain, target=None, classes=()).cohort
    assert cohort.mask.shape == (3, 0)
    assert not {"target", "classes"} & set(cohort.recipe)
    stored = to_message(cohort)
    old = Message({name: part for name, part in stored.tensors.items() if name != "mask"}, stored.facts)
    assert to_bytes(to_message(from_message(old))) == to_bytes(stored)


@pytest.mark.parametrize("wrong", [torch.zeros(8, 16, 15, dtype=torch.uint8), torch.full((8, 16, 16), 2).byte()])
def test_a_mask_that_does_not_fit_its_cohort_is_refused(hospital, wrong):
    stored = to_message(read(hospital).cohort)
    with pytest.raises(ValueError, match="mask"):
        from_message(Message({**stored.tensors, "mask": wrong}, stored.facts))


def test_without_a_table_each_picture_is_a_patient_named_by_its_path(hospital):
    """Masks that lie among the pictures are none of them."""
    for number in range(8):
        (hospital / "masks" / f"{number}.png").rename(hospital / "pictures" / f"{number}_mask.png")
    own = PictureMasks(folder=str(hospital / "pictures"), pattern="{stem}_mask.png", values=DISC)
    found = read(hospital, of=source(hospital, table=None, masks=own))
    assert not found.rejected
    assert sorted(found.names.values()) == [f"{number}.png" for number in range(8)]
    assert (found.facts["files"], found.facts["used_files"]) == (16, 16)  # a mask is used with its picture
    assert read(hospital, of=source(hospital, table=None, masks=own), exclude=("3.png",)).facts["patients"] == 7


def test_even_parts_of_a_folder_share_no_picture(hospital):
    parts = [
        set(read(hospital, of=source(hospital, table=None), part=Part(kind="even", of=2, number=n)).names.values())
        for n in (1, 2)
    ]
    assert [len(part) for part in parts] == [4, 4]
    assert len(parts[0] | parts[1]) == 8


@pytest.mark.parametrize("table", [True, False])
def test_a_changed_mask_is_seen(hospital, table):
    own = source(hospital) if table else source(hospital, table=None)
    before = survey(own, None)
    save(hospital / "masks" / "3.png", np.zeros((4, 4), np.uint8))
    assert survey(own, None)["digest"] != before["digest"]
    assert before["files"] == 16 + table


def test_a_source_goes_along_without_its_places(hospital):
    said = remove_places(source(hospital))
    assert str(hospital) not in json.dumps(said)
    assert SOURCE.validate_json(json.dumps(said), strict=True) == source(
        hospital, folder=".", table=".", masks=PictureMasks(folder=".", values=DISC)
    )
    assert remove_places(source(hospital, table=None))["table"] is None


def test_settings_of_pictures_before_there_were_masks_still_hold():
    old = {"kind": "pictures", "size": 32, "channels": 3, "fit": "squash"}
    assert IMAGES.dump_python(IMAGES.validate_json(json.dumps(old), strict=True), exclude_none=True) == old
    assert asdict(Pictures(size=32))["margin"] is None


# Real pictures


def fundus(data: Path, name: str, values: dict[str, tuple[int, ...]]) -> PictureSource:
    home = data / "fundus" / name
    if not home.is_dir():
        pytest.skip(f"no fundus pictures at {home}")
    own = PictureMasks(folder=str(home / "masks"), values=values)
    return PictureSource(folder=str(home / "images"), table=None, masks=own)


def test_fundus_pictures_of_two_hospitals_are_cut_alike_about_the_disc(data):
    """A whole fundus, and crops about the disc: with margin 1.25 the disc has the same share of both."""
    images = Pictures(size=64, fit="around", margin=1.25)
    sources = {
        "drishti": (fundus(data, "drishti", {"disc": (1, 2)}), 50),
        "rimone": (fundus(data, "rimone", {"disc": (255,)}), 255),
    }
    for own, count in sources.values():
        opened = open_pictures(own, images, "masks", ("disc",))
        assert (len(opened.waiting), opened.classes) == (count, ("disc",))
        shares = []
        for waiting in opened.waiting[::25]:
            found = waiting.read()
            mask, picture = found.examples.mask[0], found.examples.images[0]
            shares.append(mask.mean())
            rows, columns = np.nonzero(mask)
            assert abs(rows.min() + rows.max() - 63) <= 2 and abs(columns.min() + columns.max() - 63) <= 2
            assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(64 / 1.25, abs=1.5)
            # The disc is the bright part of a fundus: red and green are not, but green is, in every one of these.
            assert picture[1][mask == 1].mean() > picture[1][mask == 0].mean()
        assert 0.4 < np.mean(shares) < np.pi / 4 / 1.25**2 + 0.01


def test_disc_and_cup_of_drishti_nest(data):
    own = fundus(data, "drishti", {"disc": (1,), "cup": (2,)})
    images = Pictures(size=96, fit="around", margin=1.25)
    for waiting in open_pictures(own, images, "masks", ("disc", "cup")).waiting[::10]:
        mask = waiting.read().examples.mask[0]
        assert set(np.unique(mask)) == {0, 1, 2}
        rows, columns = np.nonzero(mask == 2)
        inside = mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert (inside > 0).mean() > 0.9


def test_masks_of_a_real_picture_are_refused_where_codes_are_wrong(data):
    opened = open_pictures(fundus(data, "drishti", {"disc": (1,)}), Pictures(size=32), "masks", ("disc",))
    with pytest.raises(Unusable, match=r"mask_value.*\[2\]"):
        opened.waiting[0].read()


def test_a_picture_alone_is_read_as_before(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (30, 45, 3), np.uint8)
    path = save(tmp_path / "pictures" / "a.png", values)
    save(tmp_path / "masks" / "a.png", np.zeros((30, 45), np.uint8))
    for images in (Pictures(size=16), Pictures(size=16, channels=1, fit="crop")):
        assert np.array_equal(read_picture(path, images), pair(tmp_path, images)[0])
