"""Which classes in settings are not ours, and where they are from: for pages, statements, identities and policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from federation.code_digest import code_digest
from federation.installed import Offer
from federation.models.own import Own, builder_of
from federation.registry import is_registered, offered, place_of
from privacy.message import Json

PACKAGES = "packages"
REGISTERED = "registered"
NETWORK = "network "


class Origin(NamedTuple):
    """Where a class is from. what: as `method trimmed_mean`. source: the package and its version; of a class that was
    registered in a process, its module and name. digest: SHA-256 of the package (`federation.installed.digest_of`), or
    of the registered code (`federation.code_digest`). offer: None for a registered class.
    """

    what: str
    source: str
    digest: str
    offer: Offer | None = None


def origins(*settings: object) -> tuple[Origin, ...]:
    """All classes in settings that are not ours, sorted; those inside of others too."""
    found = {origin for value in settings for origin in _origins(value)}
    return tuple(sorted(found, key=lambda origin: origin[:3]))


def identity(*settings: object) -> dict[str, Json]:
    """What a result depends on besides settings, where code that is not ours takes part: digests, by source; empty
    without such code, so that digests of other runs stay the same.
    """
    found: dict[str, Json] = {}
    for origin in origins(*settings):  # several may have one place, as lambdas of a module
        before = found.get(origin.source)
        found[origin.source] = origin.digest if before is None else f"{before} {origin.digest}"
    return {PACKAGES: found} if found else {}


def offers_in(*settings: object) -> tuple[Offer, ...]:
    """The installed packages that settings name, each once, by one of the things that it offers."""
    named = {one.offer.distribution: one.offer for one in origins(*settings) if one.offer is not None}
    return tuple(named[name] for name in sorted(named))


def packages_of(*settings: object) -> dict[str, Json]:
    """The facts of a file with settings: digests of the installed packages that they name, and of the code of
    registered classes; empty without any.
    """
    found: dict[str, Json] = {offer.distribution: offer.digest for offer in offers_in(*settings)}
    own: dict[str, Json] = dict(_registered_in(*settings))
    facts: dict[str, Json] = {PACKAGES: found, REGISTERED: own}
    return {name: value for name, value in facts.items() if value}


def refuse_other_code(facts: Mapping[str, Json], *settings: object) -> None:
    """Raises: ValueError: a class that its settings name has other code than when it was made."""
    made = facts.get(REGISTERED)
    for source, code in _registered_in(*settings).items():
        before = str(made.get(source, "")) if isinstance(made, dict) else ""
        if before and before != code:
            raise ValueError(
                f"the class {source} that is registered here has other code ({code[:12]}) than the one with which this "
                f"was made ({before[:12]}): define it as it was, or train anew with it as it is"
            )


def _registered_in(*settings: object) -> dict[str, str]:
    """Digests of the code of registered classes, by their place; `Own` carries its own."""
    found = [one for one in origins(*settings) if one.offer is None and not one.what.startswith(NETWORK)]
    return {one.source: one.digest for one in found}


def permitted_in(facts: Mapping[str, Json]) -> dict[str, str]:
    """What a file permits to run when a person reads it: packages that are still those with which it was written."""
    found = facts.get(PACKAGES)
    return {name: str(code) for name, code in found.items()} if isinstance(found, dict) else {}


def unpermitted(offers: Iterable[Offer], plugins: Mapping[str, str]) -> list[str]:
    """Why a policy does not permit packages, with the line that would; empty = it does. plugins: of the policy."""
    return [
        f"{offer.source} ({offer.name}) is not permitted; a policy permits it by plugins: "
        f"{{{offer.distribution}: {offer.digest}}}"
        + (f", and has {plugins[offer.distribution][:12]}..." if offer.distribution in plugins else "")
        for offer in offers
        if plugins.get(offer.distribution) != offer.digest
    ]


def _origins(value: object) -> Iterator[Origin]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if (origin := _origin(type(value), value)) is not None:
            yield origin
        for field in dataclasses.fields(value):
            yield from _origins(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _origins(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _origins(inner)


def _origin(kind: type, value: object) -> Origin | None:
    if (found := offered(kind)) is not None:
        group, offer = found
        return Origin(f"{group.what} {getattr(value, group.tag)}", offer.source, offer.digest, offer)
    if isinstance(value, Own) and (build := builder_of(value)) is not None:
        return Origin(f"{NETWORK}{value.network}", place_of(build), value.code or code_digest(build))
    if is_registered(kind):
        name = getattr(value, "name", None) or getattr(value, "kind", "")
        return Origin(str(name), place_of(kind), code_digest(kind))
    return None
