"""What a hospital's page says of where its models look."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from federation.task import Output
from pipelines.hospital.page.looks import COUNTED, describe_map_reading, describe_pointing

SIDE = 24


class Spot(nn.Module):
    """A score that is the value of one pixel. maps: of equation 9, class 1 with this value everywhere; None: none."""

    def __init__(self, row, column, maps=None):
        super().__init__()
        self.place, self.maps = (row, column), maps

    def forward(self, x):
        value = x[:, 0, self.place[0], self.place[1]]
        maps = None
        if self.maps is not None:
            maps = torch.zeros(len(x), 2, 2, 1, 1)
            maps[:, :, 1] = self.maps
        return Output(torch.stack([-value, value], dim=1), value[:, None], maps)


def cohort(images=6, *, outlined=True, lesions=slice(0, 3)):
    """Test images, all but the last positive; the first ones with a lesion at (4, 5)."""
    labels = torch.ones(images, dtype=torch.int64)
    labels[-1] = 0
    lesion = torch.zeros(images, SIDE, SIDE, dtype=torch.uint8)
    lesion[lesions, 3:6, 4:7] = 1
    return SimpleNamespace(
        split=torch.full((images,), 2), labels=labels, lesion=lesion if outlined else torch.zeros(images, 1)
    )


def test_images_with_a_lesion_in_which_the_peak_lies_are_counted():
    x = torch.rand(6, 1, SIDE, SIDE)
    assert "In 3 of 3 positive test images" in describe_pointing(Spot(4, 5).eval(), cohort(), x)
    assert "In 0 of 3 positive test images" in describe_pointing(Spot(20, 20).eval(), cohort(), x)
    assert "would in 1.6 %" in describe_pointing(Spot(4, 5).eval(), cohort(), x)  # 9 of 576 pixels


@pytest.mark.parametrize(("value", "blank"), [(-1.0, 3), (0.0, 3), (2.0, 0)])
def test_blank_class_activation_maps_are_counted_and_point_nowhere(value, blank):
    said = describe_pointing(Spot(4, 5, maps=value).eval(), cohort(), torch.rand(6, 1, SIDE, SIDE))
    assert f"blank in {blank} of 3 positive test images, and point inside the lesion in 0." in said


def test_without_outlines_only_blank_maps_are_counted():
    x = torch.rand(6, 1, SIDE, SIDE)
    assert describe_pointing(Spot(4, 5).eval(), cohort(outlined=False), x) == ""
    said = describe_pointing(Spot(4, 5, maps=-1.0).eval(), cohort(outlined=False), x)
    assert "blank in 5 of 5 positive test images." in said and "lesion" not in said


def test_without_a_positive_test_image_nothing_is_said():
    assert describe_pointing(Spot(4, 5).eval(), cohort(lesions=slice(0, 0)), torch.rand(6, 1, SIDE, SIDE)) == ""


def test_of_many_images_some_spread_over_all_are_counted():
    many = cohort(2 * COUNTED, lesions=slice(0, COUNTED))
    many.lesion[COUNTED:, 18:20, 18:20] = 1
    said = describe_pointing(Spot(4, 5).eval(), many, torch.rand(2 * COUNTED, 1, SIDE, SIDE))
    assert f"In {COUNTED // 2} of {COUNTED} positive test images" in said


def test_the_reading_names_the_grid_of_the_map():
    assert "each of 48 × 64 pixels, smoothed by 2 pixels" in describe_map_reading(torch.zeros(1, 1, 48, 64))
