"""Classes in settings that are not from this project, and their origin: for pages, statements, digests and policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from federation.code_digest import code_digest
from federation.installed import Offer
from federation.models.own import Own, find_builder
from federation.registry import find_class_offer, is_registered, qualified_name
from privacy.message import Json

PACKAGES = "packages"
REGISTERED = "registered"
NETWORK = "network "


class Origin(NamedTuple):
    """The origin of a class. what: kind and name, as `method trimmed_mean`. source: the package and its version; for a
    class registered in a process, its module and name. digest: SHA-256 of the package
    (`federation.installed.compute_package_digest`), or of the registered code (`federation.code_digest`). offer: None
    for a registered class.
    """

    what: str
    source: str
    digest: str
    offer: Offer | None = None


def list_origins(*settings: object) -> tuple[Origin, ...]:
    """The origins of all classes in settings that are not ours, nested ones too, sorted."""
    distinct_origins = {origin for value in settings for origin in _find_origins(value)}
    return tuple(sorted(distinct_origins, key=lambda origin: origin[:3]))


def code_identity(*settings: object) -> dict[str, Json]:
    """The digests, by source, of code that is not ours: a result depends on them in addition to its settings. Empty
    without such code, so that digests of other runs stay the same.
    """
    digests: dict[str, Json] = {}
    for origin in list_origins(*settings):  # several may have the same source, as lambdas of a module
        before = digests.get(origin.source)
        digests[origin.source] = origin.digest if before is None else f"{before} {origin.digest}"
    return {PACKAGES: digests} if digests else {}


def list_packages_in(*settings: object) -> tuple[Offer, ...]:
    """The installed packages that settings name, each once, as one of its offers."""
    named = {origin.offer.distribution: origin.offer for origin in list_origins(*settings) if origin.offer is not None}
    return tuple(named[name] for name in sorted(named))


def package_facts(*settings: object) -> dict[str, Json]:
    """Facts for a file that contains settings: digests of the installed packages and of the registered classes that the
    settings name; empty if there are none.
    """
    packages: dict[str, Json] = {offer.distribution: offer.digest for offer in list_packages_in(*settings)}
    registered: dict[str, Json] = dict(_registered_digests(*settings))
    facts: dict[str, Json] = {PACKAGES: packages, REGISTERED: registered}
    return {name: value for name, value in facts.items() if value}


def refuse_other_code(facts: Mapping[str, Json], *settings: object) -> None:
    """Raises: ValueError: a registered class that settings name has other code now than in the facts of the file."""
    made = facts.get(REGISTERED)
    for source, code in _registered_digests(*settings).items():
        before = str(made.get(source, "")) if isinstance(made, dict) else ""
        if before and before != code:
            raise ValueError(
                f"the class {source} that is registered here has other code ({code[:12]}) than the one with which this "
                f"was made ({before[:12]}): define it as it was, or train anew with it as it is"
            )


def _registered_digests(*settings: object) -> dict[str, str]:
    """Source -> digest of the code of registered classes; networks are left out, because `Own` contains its digest."""
    registered = [
        origin for origin in list_origins(*settings) if origin.offer is None and not origin.what.startswith(NETWORK)
    ]
    return {origin.source: origin.digest for origin in registered}


def read_permitted_packages(facts: Mapping[str, Json]) -> dict[str, str]:
    """Package -> digest that a file permits when a person loads it: the packages with which it was written."""
    packages = facts.get(PACKAGES)
    return {name: str(code) for name, code in packages.items()} if isinstance(packages, dict) else {}


def find_permission_problems(offers: Iterable[Offer], plugins: Mapping[str, str]) -> list[str]:
    """Why a policy does not permit packages, with the line that would permit them; empty = it does. plugins: of the
    policy.
    """
    return [
        f"{offer.source} ({offer.name}) is not permitted; a policy permits it by plugins: "
        f"{{{offer.distribution}: {offer.digest}}}"
        + (f", and has {plugins[offer.distribution][:12]}..." if offer.distribution in plugins else "")
        for offer in offers
        if plugins.get(offer.distribution) != offer.digest
    ]


def _find_origins(value: object) -> Iterator[Origin]:
    """The origins of all classes within settings that are not ours."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if (origin := _find_origin(type(value), value)) is not None:
            yield origin
        for field in dataclasses.fields(value):
            yield from _find_origins(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _find_origins(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _find_origins(inner)


def _find_origin(kind: type, value: object) -> Origin | None:
    """The origin of one settings object; None if its class is ours."""
    if (group_and_offer := find_class_offer(kind)) is not None:
        group, offer = group_and_offer
        return Origin(f"{group.what} {getattr(value, group.tag)}", offer.source, offer.digest, offer)
    if isinstance(value, Own) and (build := find_builder(value)) is not None:
        return Origin(f"{NETWORK}{value.network}", qualified_name(build), value.code or code_digest(build))
    if is_registered(kind):
        name = getattr(value, "name", None) or getattr(value, "kind", "")
        return Origin(str(name), qualified_name(kind), code_digest(kind))
    return None
