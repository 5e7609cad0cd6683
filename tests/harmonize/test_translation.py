from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from other_device import OTHER, other_device
from pydantic import TypeAdapter, ValidationError

from consilium.testing import testbed
from consilium.testing import translators as laws
from consilium.testing.translators import make_site_images
from harmonize.translation import AnyTranslator, CycleGan, Translator, Translators, translate_back

ADAPTER: TypeAdapter[AnyTranslator] = TypeAdapter(AnyTranslator)
NAMES = [get_args(get_type_hints(kind)["name"])[0] for kind in get_args(Translators)]
ROOT = Path(__file__).parents[2]


def asked(name: str) -> Translator:
    short: dict[str, object] = {}
    if name == "cyclegan":
        short = {"steps": 2, "width": 4, "critic": 4, "classifier": 4, "copies": 0}
    if name == "randomized":
        short = {"steps": 2, "width": 4}
    return ADAPTER.validate_python({"name": name, **short})


@pytest.mark.parametrize("name", NAMES)
def test_every_translator_keeps_shapes_inputs_and_its_promises_across_the_wire(name: str) -> None:
    laws.it_keeps_shapes_inputs_and_its_promises_across_the_wire(asked(name))


@pytest.mark.parametrize("name", NAMES)
def test_who_else_comes_with_a_patient_makes_no_difference(name: str) -> None:
    laws.who_else_comes_with_a_patient_makes_no_difference(asked(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_patient_taken_away_changes_others_images_only_where_a_translator_says_that_it_learns(
    name: str,
) -> None:
    """`learns` decides what is refused under privacy, so it must be true of every translator."""
    laws.a_patient_taken_away_changes_others_images_only_where_it_says_that_it_learns(asked(name))


def test_every_translator_can_be_named_in_a_yaml() -> None:
    """A class of `harmonize/` with `fit` and `translate` is one, and stands in `Translators`."""
    known = {kind.__name__ for kind in get_args(Translators)} | {"Translator"}
    for path in (ROOT / "harmonize").glob("*.py"):
        for found in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)):
            does = {getattr(line, "name", "") for line in found.body}
            assert not {"fit", "translate"} <= does or found.name in known, (
                f"no YAML can name {found.name} of {path.name}: add it to Translators in harmonize/translation.py"
            )


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_nobody(name: str) -> None:
    laws.nobody_is_nobody(asked(name))


@pytest.mark.parametrize("name", NAMES)
def test_only_a_cyclegan_has_a_way_back(name: str) -> None:
    settings, site = asked(name), make_site_images()
    params = settings.fit(site, make_site_images(1).images, seed=3)
    returned = translate_back(settings, params, site.images)
    assert settings.name == name and (name == "cyclegan") == (returned is not None)
    assert returned is None or returned.shape == site.images.shape


def test_the_identity_is_the_identity() -> None:
    site, settings = make_site_images(), asked("identity")
    assert torch.equal(
        settings.translate(settings.fit(site, site.images, seed=0), site.images, site.patient), site.images
    )


def test_settings_are_read_strictly() -> None:
    with pytest.raises(ValidationError, match="speed"):
        ADAPTER.validate_python({"name": "cyclegan", "speed": 3})
    with pytest.raises(ValidationError, match="does not match any of the expected tags"):
        ADAPTER.validate_python({"name": "pix2pix"})
    told = r"steps must be in \[1, 1000000\], found 0; ema must lie in \[0, 1\), found 1"
    with pytest.raises(ValidationError, match=told):
        ADAPTER.validate_python({"name": "cyclegan", "steps": 0, "ema": 1.0})
    assert ADAPTER.validate_python({"name": "cyclegan", "betas": [0.5, 0.9]}) == CycleGan(betas=(0.5, 0.9))


@pytest.mark.parametrize("kind", get_args(Translators), ids=lambda kind: kind.__name__)
def test_every_translator_is_strict_says_whether_it_learns_and_has_its_own_test(kind: type) -> None:
    where = f"{kind.__name__} of {kind.__module__}"
    assert getattr(kind, "__pydantic_config__", {}).get("extra") == "forbid", (
        f'{where}: add __pydantic_config__: ClassVar = {{"extra": "forbid"}}, without which typos in a YAML pass'
    )
    assert isinstance(getattr(kind, "learns", None), bool), f"{where}: add the class variable learns, True or False"
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "harmonize").glob("*.py") if path != Path(__file__))
    assert re.search(rf"\b{kind.__name__}\b", tests), (
        f"{where}: nothing tests it alone: write its law in tests/harmonize"
    )


def test_the_page_of_stages_has_every_translator() -> None:
    """Otherwise: python -m benchmarks.tables.reference_tables."""
    from benchmarks.tables import reference_tables

    assert reference_tables.PAGE.read_text(encoding="utf-8") == reference_tables.page()


@pytest.mark.parametrize("name", NAMES)
def test_a_translator_is_fitted_and_translates_on_any_device(name: str) -> None:
    """Its parameters come back to the CPU, from where they are sent."""
    site, shared, settings = make_site_images(), make_site_images(1).images, asked(name)
    here = settings.fit(site, shared, seed=3)
    with other_device(1e-7):
        there = settings.fit(site, shared, seed=3, device=OTHER)
        images, patient = site.images.to(OTHER), site.patient.to(OTHER)
        translated = settings.translate(there, images, patient)
        assert images.device == translated.device and all(value.device.type == "cpu" for value in there.values())
        assert torch.allclose(translated.cpu(), settings.translate(here, site.images, site.patient), atol=0.02)
    assert testbed.are_close(here, there, 0.02)
