"""Every law on everything that installed packages offer, with its defaults: `pytest --pyargs consilium.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from consilium.testing import Check, extractor_laws, method_laws, model_laws, translator_laws
from consilium.testing.strict import unknown_keys_are_refused
from federation.features import EXTRACTORS
from federation.installed import Offer, list_offers
from federation.models import MODELS
from federation.registry import Group, find_class, own_names, permit_packages
from harmonize.translation import TRANSLATORS
from personalize import ALGORITHMS
from pipelines.data.readers import READERS

KINDS: tuple[tuple[Group, Callable[[Any], Mapping[str, Check]]], ...] = (
    (ALGORITHMS, method_laws),
    (MODELS, model_laws),
    (TRANSLATORS, translator_laws),
    (EXTRACTORS, extractor_laws),
    (READERS, lambda _: {}),
)


def _laws_of_offer(group: Group, offer: Offer, laws: Callable[[Any], Mapping[str, Check]]) -> Mapping[str, Check]:
    """The laws on what a package offers; if it cannot be had, one that says why."""

    def broken(words: str) -> None:
        raise AssertionError(words)

    if offer.name in own_names(group):
        return {"name": partial(broken, f"{offer.text}: its name is taken by consilium; choose another")}
    try:
        with permit_packages("all"):  # who runs these tests installed the package
            kind: Any = find_class(group, offer.name)
        if group is READERS:  # which needs files; `reader_contract` has the other laws
            return {unknown_keys_are_refused.__name__: partial(unknown_keys_are_refused, kind, group.tag, offer.name)}
        return laws(kind(**{group.tag: offer.name}))
    except Exception as error:  # its own code
        return {"import": partial(broken, f"{offer.text}: {type(error).__name__}: {error}")}


def _list_cases() -> Iterator[Any]:
    """A pytest case for each law on each offer of an installed package."""
    for group, laws in KINDS:
        for offer in list_offers(group.group):
            for name, check in _laws_of_offer(group, offer, laws).items():
                yield pytest.param(check, id=f"{offer.name}-{name}")


@pytest.mark.parametrize("law", _list_cases())
def test_installed(law: Check) -> None:
    """A law, on what a package offers."""
    law()
