"""What a hospital's page says of where its models look."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.maps import compute_stride, normalized_maps, upsample_maps
from federation.models.sensitivity import compute_sensitivity
from federation.task import Output, Task
from pipelines.hospital.page.looks import (
    COUNTED,
    TOGETHER,
    Seen,
    describe_map_reading,
    describe_pointing,
    list_positive,
    see_images,
    select_counted,
    take_lesions,
)

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


def describe(module, shown, images):
    """What the page says of the counted images of a cohort."""
    positive = list_positive(shown)
    counted = select_counted(positive)
    return describe_pointing(see_images(module.eval(), images[counted]), take_lesions(shown, counted), len(positive))


def test_images_with_a_lesion_in_which_the_peak_lies_are_counted():
    x = torch.rand(6, 1, SIDE, SIDE)
    assert "In 3 of 3 positive test images" in describe(Spot(4, 5), cohort(), x)
    assert "In 0 of 3 positive test images" in describe(Spot(20, 20), cohort(), x)
    assert "would in 1.6 %" in describe(Spot(4, 5), cohort(), x)  # 9 of 576 pixels


@pytest.mark.parametrize(("value", "blank"), [(-1.0, 3), (0.0, 3), (2.0, 0)])
def test_blank_class_activation_maps_are_counted_and_point_nowhere(value, blank):
    said = describe(Spot(4, 5, maps=value), cohort(), torch.rand(6, 1, SIDE, SIDE))
    assert f"blank in {blank} of 3 positive test images, and point inside the lesion in 0." in said


def test_without_outlines_only_blank_maps_are_counted():
    x = torch.rand(6, 1, SIDE, SIDE)
    assert describe(Spot(4, 5), cohort(outlined=False), x) == ""
    said = describe(Spot(4, 5, maps=-1.0), cohort(outlined=False), x)
    assert "blank in 5 of 5 positive test images." in said and "lesion" not in said


def test_without_a_positive_test_image_nothing_is_said():
    assert describe(Spot(4, 5), cohort(lesions=slice(0, 0)), torch.rand(6, 1, SIDE, SIDE)) == ""


def test_of_many_images_some_spread_over_all_are_counted():
    many = cohort(2 * COUNTED, lesions=slice(0, COUNTED))
    many.lesion[COUNTED:, 18:20, 18:20] = 1
    said = describe(Spot(4, 5), many, torch.rand(2 * COUNTED, 1, SIDE, SIDE))
    assert f"In {COUNTED // 2} of {COUNTED} positive test images, evenly spread over {2 * COUNTED - 1}, the" in said


@pytest.mark.parametrize("model", [Cam(), Cnn()])
def test_what_is_seen_of_an_image_does_not_depend_on_the_others(model):
    """A second implementation: each image alone, a pass for the gradient, one for the score, one for the maps."""
    task = Task(model, (1, SIDE, 40), 2)
    network, x = task.network().eval(), torch.rand(TOGETHER + 3, 1, SIDE, 40)
    seen = see_images(network, x)
    for place in range(len(x)):
        image = x[place : place + 1]
        output = network(image)
        assert torch.allclose(seen.cams[place], compute_sensitivity(network, image)[0], atol=1e-5)
        assert float(seen.scores[place]) == pytest.approx(float(task.probabilities(network, image)[0, 1]), abs=1e-6)
        if output.maps is None:
            assert seen.class_maps is None
        else:
            plain = upsample_maps(normalized_maps(output.maps), compute_stride(output.maps, image), (SIDE, 40))
            assert torch.allclose(seen.class_maps[place], plain[0, 1], atol=1e-5)


def test_what_was_seen_of_some_images_is_that_of_their_places():
    seen = Seen(torch.rand(5, 2, 2), torch.arange(5.0), None)
    some = seen.take([3, 1])
    assert some.scores.tolist() == [3, 1] and torch.equal(some.cams, seen.cams[[3, 1]])
    assert len(seen.take([]).cams) == 0


def test_the_reading_names_the_grid_of_the_map():
    assert "each of 48 × 64 pixels, smoothed by 2 pixels" in describe_map_reading(torch.zeros(1, 1, 48, 64))
