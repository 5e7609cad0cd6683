"""A hospital's images as points, on its own page: as read, translated, and beside the shared ones."""

from types import SimpleNamespace

import torch

from harmonize.scale import Scale
from pipelines.hospital.page.harmonization import _draw_maps
from pipelines.hospital.points import ENDING, FOLDER, GROUPS, MOST, write_points
from privacy.message import from_bytes

SCALE = Scale(low=0.0, high=2.0)


def images(number, seed, channels=1):
    return 2 * torch.rand(number, channels, 8, 8, generator=torch.Generator().manual_seed(seed))


def cohort(number, trained):
    return SimpleNamespace(images=images(number, 0), split=(torch.arange(number) >= trained).long())


def written(tmp_path):
    return from_bytes((tmp_path / FOLDER / f"vafl{ENDING}").read_bytes()).tensors


def test_training_images_alone_become_points_of_each_group(tmp_path):
    hospital, here = SimpleNamespace(root=tmp_path), cohort(12, 7)
    write_points(hospital, "vafl", here, images(12, 1), SCALE.into(images(5, 2)), SCALE)
    assert {name: tuple(points.shape) for name, points in written(tmp_path).items()} == dict(
        zip(GROUPS, [(7, 2), (7, 2), (5, 2)], strict=True)
    )
    (picture,) = _draw_maps(hospital, ["vafl", "other"])
    assert "vafl" in picture.title and "7 as read, 7 translated, 5 shared" in picture.html


def test_of_many_images_some_are_drawn(tmp_path):
    many = MOST + 20
    write_points(
        SimpleNamespace(root=tmp_path), "vafl", cohort(many, many), images(many, 1), images(many, 2) - 1, SCALE
    )
    assert {len(points) for points in written(tmp_path).values()} == {MOST}


def test_images_that_are_no_numbers_are_left_out_and_too_few_make_no_map(tmp_path):
    hospital, here, broken = SimpleNamespace(root=tmp_path), cohort(4, 4), images(4, 1)
    broken[:3] = torch.nan
    write_points(hospital, "vafl", here, broken, SCALE.into(images(5, 2)), SCALE)
    assert [len(written(tmp_path)[name]) for name in GROUPS] == [4, 1, 5]
    write_points(hospital, "vafl", cohort(4, 0), broken, torch.full((5, 1, 8, 8), torch.nan), SCALE)
    assert not (tmp_path / FOLDER / f"vafl{ENDING}").exists() and not list(_draw_maps(hospital, ["vafl"]))


def test_an_identity_leaves_the_points_where_they_were(tmp_path):
    here = cohort(20, 20)
    write_points(SimpleNamespace(root=tmp_path), "vafl", here, here.images, SCALE.into(images(5, 2)), SCALE)
    found = written(tmp_path)
    away = (found["as read"] - found["translated"]).norm(dim=1).median()
    assert away < 0.5 * found["as read"].std(dim=0).norm()
