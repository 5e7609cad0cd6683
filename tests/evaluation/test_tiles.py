"""Tiles of contact sheets as pixels: greys, colours and maps keep their values, and lines lie where masks end."""

import base64
import io

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from evaluation.drawing import png_uri
from evaluation.tiles import FOUND_COLOUR, GIVEN_COLOUR, LESION, OPAQUE, ORGAN, Tile, draw_tile

DARK = np.zeros((8, 8))
SIZE = (80, 80)


def near(pixels, colour):
    """Where a colour is: (n, 2) rows and columns in pixels of an image of 8 × 8."""
    wanted = 255 * np.array(to_rgb(colour))
    return np.argwhere((np.abs(pixels - wanted) < 24).all(axis=-1)) / 10 - 0.45


def test_a_window_maps_to_black_and_white_and_what_lies_outside_is_clipped():
    image = np.array([[-5.0, 0, 1], [2, 3, 9]]).repeat(10, axis=0).repeat(10, axis=1)
    pixels = draw_tile(Tile(image, ""), 0, 4, (30, 20))
    assert pixels[5::10, 5::10, 0].tolist() == [[0, 0, 64], [128, 191, 255]] and np.ptp(pixels, axis=-1).max() == 0


def test_between_pixels_an_image_is_linear():
    pixels = draw_tile(Tile(np.array([[0.0, 1.0]]), ""), 0, 1, (100, 50))[..., 0]
    assert (pixels == pixels[0]).all()
    assert np.abs(pixels[0, 25:75] - 255 * (np.arange(50) + 0.5) / 50).max() <= 1
    assert pixels[0, :25].max() == 0 and pixels[0, 75:].min() == 255


def test_a_colour_is_itself_whatever_the_window():
    colours = np.array([[[1, 0, 0], [0, 0.5, 1]]], float)
    pixels = draw_tile(Tile(colours, ""), 5, 9, (20, 10))
    assert pixels[5, 0].tolist() == [255, 0, 0] and pixels[5, -1].tolist() == [0, 128, 255]


def test_a_value_that_is_missing_is_white():
    image = DARK.copy()
    image[0, 0] = np.nan
    pixels = draw_tile(Tile(image, ""), 0, 1, SIZE)
    assert (pixels[4, 4] == 255).all() and (pixels[40, 40] == 0).all()


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_map_covers_the_more_the_more_it_says(value):
    pixels = draw_tile(Tile(DARK + 0.25, "", cam=DARK + value), 0, 1, SIZE)
    alpha, colour = OPAQUE * value, np.array(matplotlib.colormaps["inferno"](value)[:3])
    assert np.abs(pixels - 255 * ((1 - alpha) * 0.25 + alpha * colour)).max() < 1


@pytest.mark.parametrize(
    ("name", "colour"),
    [("lesion", LESION), ("organ", ORGAN), ("given_mask", GIVEN_COLOUR), ("predicted_mask", FOUND_COLOUR)],
)
def test_a_line_lies_half_way_between_the_last_pixel_inside_and_the_first_outside(name, colour):
    mask = np.zeros((8, 8), int)
    mask[2:6, 3:5] = 1
    found = near(draw_tile(Tile(DARK, "", **{name: mask}), 0, 1, SIZE), colour)
    low, high = found.min(axis=0), found.max(axis=0)
    assert np.abs(low - (1.5, 2.5)).max() < 0.2 and np.abs(high - (5.5, 4.5)).max() < 0.2
    assert not len(found[(found > (1.8, 2.8)).all(axis=1) & (found < (5.2, 4.2)).all(axis=1)])


def test_a_mask_is_closed_along_the_border_and_a_lesion_ends_there():
    mask = np.zeros((8, 8), int)
    mask[:4] = 1
    for name, colour, top in (("given_mask", GIVEN_COLOUR, -0.25), ("lesion", LESION, 3.5)):
        rows = near(draw_tile(Tile(DARK, "", **{name: mask}), 0, 1, SIZE), colour)[:, 0]
        assert abs(rows.min() - top) < 0.2 and abs(rows.max() - 3.5) < 0.2
    whole = near(draw_tile(Tile(DARK, "", given_mask=mask * 0 + 1), 0, 1, SIZE), GIVEN_COLOUR)
    assert {*np.round(whole.min(axis=0)), *np.round(whole.max(axis=0))} <= {-0.0, 7.0}


def test_each_class_has_its_line_and_only_the_models_is_dashed():
    mask = np.zeros((8, 8), int)
    mask[1:7, 1:7], mask[3:5, 3:5] = 1, 2
    lengths = {}
    for name, colour in (("given_mask", GIVEN_COLOUR), ("predicted_mask", FOUND_COLOUR)):
        for label in (mask, np.minimum(mask, 1)):
            lengths[name, label.max()] = len(near(draw_tile(Tile(DARK, "", **{name: label}), 0, 1, SIZE), colour))
    assert (
        lengths["given_mask", 2] > 1.2 * lengths["given_mask", 1]
        and lengths["predicted_mask", 2] > 1.2 * lengths["predicted_mask", 1]
    )
    assert 0.5 < lengths["predicted_mask", 1] / lengths["given_mask", 1] < 0.8


def test_a_line_has_a_dark_rim_on_a_light_image():
    mask = np.zeros((8, 8), int)
    mask[2:6, 2:6] = 1
    row = draw_tile(Tile(DARK + 1, "", given_mask=mask), 0, 1, SIZE)[40].astype(int).sum(axis=-1)
    assert row.max() == 765 and row[15:25].min() < 250


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 2), (9, 2), (60, 40)])
def test_every_shape_can_be_drawn_with_everything_on_it(shape):
    some = (np.arange(np.prod(shape)) % 2).reshape(shape)
    tile = Tile(some * 1.0, "", lesion=some, organ=1 - some, cam=some / 2, given_mask=2 * some, predicted_mask=1 - some)
    assert draw_tile(tile, 0, 1, (30, 20)).shape == (20, 30, 3)
    assert (draw_tile(tile, 0, 1, (30, 20)) == draw_tile(tile, 0, 1, (30, 20))).all()


def test_a_picture_without_colour_is_stored_as_grey_and_both_kinds_without_loss():
    colour = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    for pixels, mode in ((colour, "RGB"), (colour[..., :1].repeat(3, axis=2), "L"), (colour[..., 0], "L")):
        picture = Image.open(io.BytesIO(base64.b64decode(png_uri(pixels).partition(",")[2])))
        assert picture.mode == mode
        assert (np.asarray(picture.convert("RGB")) == (pixels if pixels.ndim == 3 else pixels[..., None])).all()
