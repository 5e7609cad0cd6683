"""Tiles of contact sheets in layers: greys, colours and maps keep their values, and lines lie where masks end."""

import re

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from outlined import fill_path, follow_path, read_pictures, read_png

from evaluation.drawing import png_uri
from evaluation.pictures import SIDE, contact_sheet
from evaluation.tiles import (
    FOUND_COLOUR,
    GIVEN_COLOUR,
    LESION,
    OPAQUE,
    ORGAN,
    STEPS,
    Tile,
    draw_tile,
    list_map_colours,
    split_layers,
)

DARK = np.zeros((8, 8))
NAMES = [("lesion", LESION), ("organ", ORGAN), ("given_mask", GIVEN_COLOUR), ("predicted_mask", FOUND_COLOUR)]


def lines_of(name, mask, colour):
    """The lines of that colour on a tile with that mask."""
    lines = split_layers(Tile(np.zeros(mask.shape), "", **{name: mask}), 0, 1, SIDE).lines
    return [line for line in lines if line.colour == colour]


@given(arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(-3, 3)))
def test_an_image_that_is_no_larger_than_a_tile_stays_as_it_is(image):
    ground = split_layers(Tile(image, ""), -1, 2, 9).ground
    slow = [[round(255 * min(max((np.float32((value + 1) / 3)), 0), 1)) for value in row] for row in image]
    assert np.abs(ground.astype(int) - slow).max() <= 1 and ground.shape == image.shape


@pytest.mark.parametrize(("shape", "size"), [((400, 200), (84, 168)), ((3, 900), (168, 1)), ((168, 168), (168, 168))])
def test_a_larger_image_is_reduced_to_a_tile_and_keeps_its_mean(shape, size):
    image = np.random.default_rng(0).random(shape)
    layers = split_layers(Tile(image, "", cam=image), 0, 1, SIDE)
    assert layers.ground.shape == layers.cam.shape == size[::-1]
    assert abs(layers.ground.mean() / 255 - image.mean()) < 0.01


def test_a_window_maps_to_black_and_white_and_what_lies_outside_is_clipped():
    image = np.array([[-5.0, 0, 1], [2, 3, 9]])
    assert split_layers(Tile(image, ""), 0, 4, SIDE).ground.tolist() == [[0, 0, 64], [128, 191, 255]]
    pixels = draw_tile(Tile(image.repeat(10, axis=0).repeat(10, axis=1), ""), 0, 4, (30, 20))
    assert pixels[5::10, 5::10, 0].tolist() == [[0, 0, 64], [128, 191, 255]] and np.ptp(pixels, axis=-1).max() == 0


def test_between_pixels_an_enlarged_image_is_linear():
    pixels = draw_tile(Tile(np.array([[0.0, 1.0]]), ""), 0, 1, (100, 50))[..., 0]
    assert (pixels == pixels[0]).all()
    assert np.abs(pixels[0, 25:75] - 255 * (np.arange(50) + 0.5) / 50).max() <= 1
    assert pixels[0, :25].max() == 0 and pixels[0, 75:].min() == 255


def test_a_colour_is_itself_whatever_the_window():
    tile = Tile(np.array([[[1, 0, 0], [0, 0.5, 1]]], float), "")
    assert split_layers(tile, 5, 9, SIDE).ground.tolist() == [[[255, 0, 0], [0, 128, 255]]]
    pixels = draw_tile(tile, 5, 9, (20, 10))
    assert pixels[5, 0].tolist() == [255, 0, 0] and pixels[5, -1].tolist() == [0, 128, 255]


def test_a_value_that_is_missing_is_white():
    image = DARK.copy()
    image[0, 0] = np.nan
    ground = split_layers(Tile(image, ""), 0, 1, SIDE).ground
    assert ground[0, 0] == 255 and ground.sum() == 255


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_map_covers_the_more_the_more_it_says(value):
    tile = Tile(DARK + 0.25, "", cam=DARK + value)
    alpha, colour = OPAQUE * value, np.array(matplotlib.colormaps["inferno"](value)[:3])
    wanted = 255 * ((1 - alpha) * 0.25 + alpha * colour)
    assert np.abs(draw_tile(tile, 0, 1, (80, 80)) - wanted).max() < 1
    ground, cam = read_pictures(contact_sheet([tile], title="t", window=(0, 1)).html.partition("</ul>")[0])
    layer = np.asarray(cam.convert("RGBA"), float)
    cover = layer[..., 3:] / 255
    laid = np.asarray(ground.convert("RGB")) * (1 - cover) + layer[..., :3] * cover
    assert np.abs(laid - wanted).max() < 255 / STEPS, "what a browser lays over the image is what is drawn in one"


@given(arrays(np.int64, st.tuples(st.integers(2, 9), st.integers(2, 9)), elements=st.integers(0, 2)))
def test_a_pixel_lies_inside_the_line_of_a_mask_exactly_if_it_belongs_to_it(mask):
    for name, colour in NAMES[2:]:
        lines = [line for line in lines_of(name, mask, colour) if line.opacity == 1]
        assert len(lines) == bool(mask.any())
        drawn = fill_path(lines[0].path, mask.shape) if lines else np.zeros(mask.shape, bool)
        labels = [label for label in (1, 2) if (mask == label).any()]
        slow = np.zeros(mask.shape, bool)
        for label in labels:
            slow ^= mask >= label  # a line around each class lies within that of the one below
        assert (drawn == slow).all()


@given(arrays(np.int64, (6, 7), elements=st.integers(0, 1)))
def test_the_line_of_a_lesion_is_the_same_but_along_the_border_where_it_has_none(mask):
    inner = np.pad(mask, 2)
    for name, colour in NAMES[:2]:
        lines = lines_of(name, inner, colour)
        drawn = fill_path(lines[0].path, inner.shape) if lines else np.zeros(inner.shape, bool)
        assert (drawn == (inner > 0)).all()
        points = [points for line in lines_of(name, mask, colour) for points in follow_path(line.path)]
        assert all(x >= 0.5 and x <= 6.5 and 0.5 <= y <= 5.5 for line in points for x, y in line)


@pytest.mark.parametrize(("name", "colour"), NAMES)
def test_a_line_lies_half_way_between_the_last_pixel_inside_and_the_first_outside(name, colour):
    mask = np.zeros((8, 8), int)
    mask[2:6, 3:5] = 1
    points = np.concatenate([p for line in lines_of(name, mask, colour) for p in follow_path(line.path)])
    assert points.min(axis=0).tolist() == [3, 2] and points.max(axis=0).tolist() == [5, 6]


def test_a_mask_is_closed_along_the_border():
    (line,) = [line for line in lines_of("given_mask", np.ones((8, 8), int), GIVEN_COLOUR) if line.opacity == 1]
    (points,) = follow_path(line.path)
    assert points.min() == 0.25 and points.max() == 7.75 and line.path.endswith("z")


def test_only_the_models_mask_is_dashed_and_both_have_a_dark_rim_below():
    for name, colour in NAMES[2:]:
        rim, line = split_layers(Tile(DARK, "", **{name: np.eye(8, dtype=int)}), 0, 1, SIDE).lines
        assert (rim.path, rim.dash) == (line.path, line.dash) and rim.width > line.width
        assert (rim.colour, line.colour) == ("#000000", colour) and bool(line.dash) == (name == "predicted_mask")


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 2), (9, 2), (60, 40)])
def test_every_shape_can_be_drawn_with_everything_on_it(shape):
    some = (np.arange(np.prod(shape)) % 2).reshape(shape)
    tile = Tile(some * 1.0, "", lesion=some, organ=1 - some, cam=some / 2, given_mask=2 * some, predicted_mask=1 - some)
    assert draw_tile(tile, 0, 1, (30, 20)).shape == (20, 30, 3)
    text = contact_sheet([tile], title="t").html
    assert text == contact_sheet([tile], title="t").html and "NaN" not in text
    sides = [4 * shape[1], 4 * shape[0]]
    assert re.findall(r'viewBox="0 0 (\d+) (\d+)"', text) == [tuple(map(str, sides))]


def test_a_picture_without_colour_is_stored_as_grey_and_both_kinds_without_loss():
    colour = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    for pixels, mode in ((colour, "RGB"), (colour[..., :1].repeat(3, axis=2), "L"), (colour[..., 0], "L")):
        picture = read_png(png_uri(pixels))
        assert picture.mode == mode
        assert (np.asarray(picture.convert("RGB")) == (pixels if pixels.ndim == 3 else pixels[..., None])).all()


def test_a_map_is_stored_by_its_steps_and_comes_back_in_their_colours():
    steps, colours = np.arange(STEPS, dtype=np.uint8).reshape(8, -1), list_map_colours()
    assert (np.asarray(read_png(png_uri(steps, colours)).convert("RGBA")) == colours[steps]).all()
    assert (
        colours[0, 3] == 0 and colours[-1, 3] == round(255 * OPAQUE) and (np.diff(colours[:, 3].astype(int)) > 0).all()
    )
