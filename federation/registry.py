"""Classes that settings can name: of a group's union, of installed packages, and those registered in a process.

A package has a union of its own classes and a `Group`. The group is used in annotations, as in
`Annotated[AnyModel, MODELS]`. When such a value is read, a name of the union is taken from there. Another name is
looked up among entry points (`federation.installed`) and registered classes; only then is that one package imported.

Code of a package runs only if its digest is permitted, by `permit_packages`: with the policy of a hospital while it
answers a request, or with all packages for settings that a person wrote on this machine. Otherwise no installed package
is imported.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

from federation.installed import Offer, list_offers, load_offer
from federation.promised import find_class_problems, list_names
from privacy.pickled import reduce_error

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

Permitted: TypeAlias = Mapping[str, str] | Literal["all"]
"""Package -> digest; or all installed packages."""
OTHER_LABEL = "·"
"""Label of the choice that is not in the union, in the location of pydantic's errors."""


@dataclasses.dataclass(frozen=True)
class Permission:
    """plugins: the permitted packages. used: (kind and name, source, digest) of each class that was looked up."""

    plugins: Permitted
    used: set[tuple[str, str, str]] = dataclasses.field(default_factory=set)


_PERMITTED: ContextVar[Permission | None] = ContextVar("permitted packages", default=None)
_REGISTERED: dict[tuple[str, str], type] = {}
_OFFERED: dict[type, tuple[Group, Offer]] = {}


class NotPermitted(Exception):
    """Settings name a class of an installed package that is not permitted here.

    It is no `ValueError`, so that pydantic does not turn it into a validation error.
    """

    def __init__(self, offer: Offer) -> None:
        super().__init__(f"{offer.text} is not permitted here; plugins: {{{policy_line(offer)}}} permits it")
        self.offer = offer

    __reduce__ = reduce_error


@contextmanager
def permit_packages(plugins: Permitted, *, unless_set: bool = False) -> Iterator[Permission]:
    """Permit packages, by name and digest, for all settings that this thread reads within the context.

    unless_set: keep a permission that is in force: so a hospital's policy also holds for the files that it reads.
    """
    permission_in_force = _PERMITTED.get() if unless_set else None
    permission = Permission(plugins) if permission_in_force is None else permission_in_force
    token = _PERMITTED.set(permission)
    try:
        yield permission
    finally:
        _PERMITTED.reset(token)


def policy_line(offer: Offer) -> str:
    """The line of a policy that permits a package. Raises: ValueError: it has no digest."""
    return f"{offer.distribution}: {offer.digest}"


@dataclasses.dataclass(frozen=True)
class Group:
    """A kind of classes that settings name, used as an annotation of their union.

    group: entry points are in `consilium.<group>`. what: the word for one class, in messages. built_in: the union's
    classes. needs: the Protocol. tag: the field by which settings choose.
    """

    group: str
    what: str
    built_in: tuple[type, ...] = dataclasses.field(repr=False)
    needs: type = dataclasses.field(repr=False)
    tag: str = "name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The classes of the union by their names, and one more choice that looks up other names when they are read."""
        from pydantic_core import core_schema

        members = {name: kind for kind in union_members(source) for name in list_names(kind, self.tag)}
        schemas = {kind: handler.generate_schema(kind) for kind in set(members.values())}
        choices: dict[Any, CoreSchema] = {name: schemas[kind] for name, kind in members.items()}

        def find_tag(value: Any) -> str:
            tag = value.get(self.tag) if isinstance(value, dict) else getattr(value, self.tag, None)
            return tag if isinstance(tag, str) and tag in members else OTHER_LABEL

        choices[OTHER_LABEL] = core_schema.no_info_plain_validator_function(
            lambda value: _validate_other(self, tuple(members), value),
            json_schema_input_schema=core_schema.dict_schema(),
        )
        return core_schema.tagged_union_schema(choices, discriminator=find_tag)


@runtime_checkable
class Deferred(Protocol):
    """Annotates a value of a union that is defined only after the class whose field is annotated."""

    def find_union(self) -> Any:
        """The union, as an annotation."""
        ...


def union_members(union: Any) -> tuple[type, ...]:
    """The classes of a union, or the one class."""
    return get_args(union) if get_origin(union) in (Union, types.UnionType) else (union,)


def own_names(group: Group) -> tuple[str, ...]:
    """The names in the union of a group."""
    return tuple(name for kind in group.built_in for name in list_names(kind, group.tag))


def other_names(group: Group) -> tuple[str, ...]:
    """The names that installed packages offer or that were registered; nothing is imported."""
    built_in_names = set(own_names(group))
    names = [name for kind, name in _REGISTERED if kind == group.group]
    names += [offer.name for offer in list_offers(group.group) if offer.name not in built_in_names]
    return tuple(dict.fromkeys(names))


def register(group: Group, kind: type) -> type:
    """Let settings of this process name a class that no installed package offers, as one from a notebook.

    It holds in this process only: hospitals on other machines do not know it. A new definition of the same class
    replaces the old one. Returns the class.

    Raises:
        ValueError: the class lacks something (all of it is listed), or its name is taken.
    """
    if lacks := complaints(group, kind):
        raise ValueError(f"{getattr(kind, '__qualname__', kind)} is no {group.what}: {'; '.join(lacks)}")
    built_in_names = own_names(group)
    for name in list_names(kind, group.tag):
        before = _REGISTERED.get((group.group, name))
        if name in built_in_names:
            raise ValueError(f"the name {name!r} is taken by a {group.what} of this package; choose another")
        if before is not None and qualified_name(before) != qualified_name(kind):
            raise ValueError(
                f"the name {name!r} is taken by {qualified_name(before)}; choose another, or unregister that one"
            )
        if taken := [offer for offer in list_offers(group.group) if offer.name == name]:
            raise ValueError(f"the name {name!r} is taken by {taken[0].text}; choose another, or remove that package")
    _REGISTERED.update({(group.group, name): kind for name in list_names(kind, group.tag)})
    return kind


def unregister(group: Group, kind: type) -> None:
    """Remove a registered class; nothing happens if it is not registered."""
    for name in list_names(kind, group.tag):
        if _REGISTERED.get((group.group, name)) is kind:
            del _REGISTERED[group.group, name]


def find_offer(group: Group, name: str) -> Offer | None:
    """The entry point behind a name; None if it is built in, registered in this process, or unknown.

    Raises:
        ValueError: two installed packages offer it.
    """
    if (group.group, name) in _REGISTERED or name in own_names(group):
        return None
    matches = [offer for offer in list_offers(group.group) if offer.name == name]
    if len(matches) > 1:
        both = " and ".join(offer.source for offer in matches)
        raise ValueError(f"{name!r} is offered by {both}, and only one of them can be meant; remove the others")
    return matches[0] if matches else None


def find_class(group: Group, name: str) -> type | None:
    """The class of a name that is not built in; None if there is none. If a package offers it, the package is imported.

    Raises:
        NotPermitted: the package is not permitted here.
        ValueError: it cannot be imported, or does not fit this group; the message says why.
    """
    permission = _PERMITTED.get() or Permission({})
    if (kind := _REGISTERED.get((group.group, name))) is not None:
        from federation.code_digest import code_digest  # brings torch

        permission.used.add((f"{group.what} {name}", qualified_name(kind), code_digest(kind)))
        return kind
    if (offer := find_offer(group, name)) is None:
        return None
    if permission.plugins != "all" and permission.plugins.get(offer.distribution) != offer.digest:
        raise NotPermitted(offer)
    permission.used.add((f"{group.what} {name}", offer.source, offer.digest))
    return _load_class(group, offer)


@lru_cache(maxsize=256)
def _load_class(group: Group, offer: Offer) -> type:
    """The class behind an entry point. Raises: ValueError: it cannot be imported, or is none of the group."""
    kind = load_offer(offer)
    lacks = complaints(group, kind)
    if not lacks and offer.name not in list_names(kind, group.tag):  # type: ignore[arg-type]
        lacks = [f"its field {group.tag} must be the literal {offer.name!r}, as its entry point says"]
    if lacks or not isinstance(kind, type):
        raise ValueError(f"{offer.text} is no {group.what}: {'; '.join(lacks)}; repair or remove that package")
    _OFFERED[kind] = (group, offer)
    return kind


def find_class_offer(kind: type) -> tuple[Group, Offer] | None:
    """The entry point from which a class was taken; None for classes of ours and registered ones."""
    return _OFFERED.get(kind)


def is_registered(kind: type) -> bool:
    """Whether a class is registered in this process."""
    return kind in _REGISTERED.values()


def complaints(group: Group, kind: object) -> list[str]:
    """What a class lacks to belong to the group; empty = nothing."""
    return find_class_problems(kind, group.needs, group.tag)


def qualified_name(kind: object) -> str:
    """Module and name of a class or function."""
    return f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', type(kind).__name__)}"


@lru_cache(maxsize=256)
def _type_adapter(kind: type) -> TypeAdapter[Any]:
    """pydantic's adapter of a class, made once."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _validate_other(group: Group, known: tuple[str, ...], value: Any) -> Any:
    """Validate settings whose tag is not in the union, by the class of that name; errors are as pydantic's."""
    from pydantic import ValidationError
    from pydantic_core import PydanticKnownError

    if not isinstance(value, dict):
        if isinstance(value, tuple(kind for (name, _), kind in _REGISTERED.items() if name == group.group)):
            return value
        raise PydanticKnownError("dict_type")
    if group.tag not in value:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": f"'{group.tag}'"})
    name = value[group.tag]
    kind = find_class(group, name) if isinstance(name, str) else None
    if kind is None:
        tags = ", ".join(f"'{tag}'" for tag in (*known, *other_names(group)))
        error_facts = {"discriminator": f"'{group.tag}'", "tag": str(name), "expected_tags": tags}
        raise PydanticKnownError("union_tag_invalid", error_facts)
    try:
        return _type_adapter(kind).validate_json(json.dumps(value), strict=True)
    except (ValidationError, NotPermitted):
        raise
    except Exception as error:  # from the author's code, in __post_init__ or in annotations
        raise ValueError(f"{group.what} {name!r} cannot be made ({type(error).__name__}: {error})") from error
