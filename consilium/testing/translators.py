"""What every translator keeps: shapes, range, and whose images a patient's depend on."""

from __future__ import annotations

import torch

from consilium.testing.held import hold
from harmonize.own import SiteImages
from harmonize.translation import Translator
from privacy.message import Message, from_bytes, to_bytes

SIDES = (16, 24)


def make_site_images(seed: int = 0) -> SiteImages:
    """Five images (1, 16, 24) of patients 7, 3 and 5."""
    g = torch.Generator().manual_seed(seed)
    patient = torch.tensor([7, 3, 7, 3, 5])
    return SiteImages(torch.rand(5, 1, *SIDES, generator=g) - 0.8, torch.tensor([0, 1, 0, 1, 0]), patient)


def it_keeps_shapes_inputs_and_its_promises_across_the_wire(settings: Translator) -> None:
    """Images stay in [-1, 1] and of their shape, the input is not changed, parameters are tensors of a message."""
    site, shared = make_site_images(), make_site_images(1).images + 0.5
    before = site.images.clone()
    params = settings.fit(site, shared, seed=3)
    received = from_bytes(to_bytes(Message(params))).tensors
    new = settings.translate(received, site.images, site.patient)
    hold(torch.equal(site.images, before), "fit or translate changes its input")
    hold(new.shape == before.shape and new.dtype == torch.float32, f"found {tuple(new.shape)} {new.dtype}")
    hold(bool(new.min() >= -1) and bool(new.max() <= 1), f"translated images reach {new.min()} and {new.max()}")
    again = settings.translate(params, site.images, site.patient)
    hold(torch.equal(new, again), "parameters that were serialized translate in another way")


def who_else_comes_with_a_patient_makes_no_difference(settings: Translator) -> None:
    """A patient is translated alone as among others."""
    site = make_site_images()
    params = settings.fit(site, make_site_images(1).images, seed=3)
    together = settings.translate(params, site.images, site.patient)
    for patient in (3, 5, 7):
        rows = site.patient == patient
        alone = settings.translate(params, site.images[rows], site.patient[rows])
        hold(bool(torch.allclose(alone, together[rows], atol=1e-6)), f"patient {patient} is translated otherwise alone")


def a_patient_taken_away_changes_others_images_only_where_it_says_that_it_learns(settings: Translator) -> None:
    """`learns` decides what is refused under privacy, so it must be true of every translator."""
    site = make_site_images()
    rows = site.patient != 7
    without = SiteImages(site.images[rows], site.labels[rows], site.patient[rows])
    left, right = (
        settings.translate(settings.fit(fitted, make_site_images(1).images, seed=3), without.images, without.patient)
        for fitted in (site, without)
    )
    hold(
        torch.equal(left, right) != settings.learns,
        f"{settings.name}.learns is {settings.learns}, and a patient's images {'do not ' if settings.learns else ''}"
        "depend on who else was there when it was fitted: set its class variable learns",
    )


def nobody_is_nobody(settings: Translator) -> None:
    """No images become no images."""
    params = settings.fit(make_site_images(), make_site_images(1).images, seed=3)
    empty = settings.translate(params, torch.zeros(0, 1, *SIDES), torch.zeros(0, dtype=torch.int64))
    hold(tuple(empty.shape) == (0, 1, *SIDES), f"found {tuple(empty.shape)}")


LAWS = (
    it_keeps_shapes_inputs_and_its_promises_across_the_wire,
    who_else_comes_with_a_patient_makes_no_difference,
    a_patient_taken_away_changes_others_images_only_where_it_says_that_it_learns,
    nobody_is_nobody,
)
"""Of translators."""
