"""Classes that settings can name: of a group's union, of installed packages, and those registered in a process.

A room has a union of its own classes and a `Group` beside it, which stands in annotations, as in
`Annotated[AnyModel, MODELS]`. When such a value is read, one of the own names is taken from the union. Another name is
looked up among entry points (`federation.installed`) and registered classes; only then is that package imported, and
no other.

A package's code runs only where its digest is permitted: `permitting` opens that for the settings that a person wrote
on this machine, and by a hospital's policy while it answers a request. Without it no installed package is imported.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from federation.installed import Offer, load, offers

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

Permitted: TypeAlias = Mapping[str, str] | Literal["all"]
"""Package -> digest; or everything that is installed."""
OTHERS = "·"
"""Label of what is not in the union, in pydantic's places of errors."""

_PERMITTED: ContextVar[Permitted] = ContextVar("permitted packages", default=types.MappingProxyType({}))
_REGISTERED: dict[tuple[str, str], type] = {}


class NotPermitted(Exception):
    """Settings name what an installed package offers, and this package is not permitted here.

    No `ValueError`, so that pydantic lets it through.
    """

    def __init__(self, offer: Offer) -> None:
        super().__init__(f"{offer.text} is not permitted here; policy.plugins must say {line_of(offer)}")
        self.offer = offer


@contextmanager
def permitting(plugins: Permitted) -> Iterator[None]:
    """Permit packages, by name and digest, to whatever settings are read inside, in this thread."""
    token = _PERMITTED.set(plugins)
    try:
        yield
    finally:
        _PERMITTED.reset(token)


def line_of(offer: Offer) -> str:
    """The line of a policy that permits a package. Raises: ValueError: it has no digest."""
    return f"{offer.distribution}: {offer.digest}"


@dataclasses.dataclass(frozen=True)
class Group:
    """A kind of classes that settings name, used as an annotation of their union.

    group: entry points are in `consilium.<group>`. what: one of them, in messages. built_in: the union's classes.
    needs: the Protocol. tag: the field by which settings choose.
    """

    group: str
    what: str
    built_in: tuple[type, ...] = dataclasses.field(repr=False)
    needs: type = dataclasses.field(repr=False)
    tag: str = "name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The union's classes by their names, and one more choice, which looks a name up when it is read."""
        from pydantic_core import core_schema

        members = {name: kind for kind in members_of(source) for name in names_of(kind, self.tag)}
        made = {kind: handler.generate_schema(kind) for kind in set(members.values())}
        choices: dict[Any, CoreSchema] = {name: made[kind] for name, kind in members.items()}

        def tagged(value: Any) -> str:
            tag = value.get(self.tag) if isinstance(value, dict) else getattr(value, self.tag, None)
            return tag if isinstance(tag, str) and tag in members else OTHERS

        choices[OTHERS] = core_schema.no_info_plain_validator_function(
            lambda value: _other(self, tuple(members), value), json_schema_input_schema=core_schema.dict_schema()
        )
        return core_schema.tagged_union_schema(choices, discriminator=tagged)


def members_of(union: Any) -> tuple[type, ...]:
    """The classes of a union, or the one class."""
    return get_args(union) if get_origin(union) in (Union, types.UnionType) else (union,)


def names_of(kind: type, tag: str = "name") -> tuple[str, ...]:
    """The values of a class's field by which settings choose it; () if it is no literal."""
    hint = get_type_hints(kind).get(tag)
    return get_args(hint) if get_origin(hint) is Literal else ()


def own_names(group: Group) -> tuple[str, ...]:
    """Names in the group's union."""
    return tuple(name for kind in group.built_in for name in names_of(kind, group.tag))


def other_names(group: Group) -> tuple[str, ...]:
    """Names that installed packages offer or that were registered; nothing is imported."""
    own = set(own_names(group))
    found = [name for kind, name in _REGISTERED if kind == group.group]
    found += [offer.name for offer in offers(group.group) if offer.name not in own]
    return tuple(dict.fromkeys(found))


def register(group: Group, kind: type) -> type:
    """Let settings of this process name a class that no installed package offers, as one from a notebook.

    It holds in this process only: hospitals on other machines do not know it. The same class, defined anew, takes the
    place of the one before it. Returns the class.

    Raises:
        ValueError: what the class lacks, all of it; or its name is taken.
    """
    if lacks := complaints(group, kind):
        raise ValueError(f"{getattr(kind, '__qualname__', kind)} is no {group.what}: {'; '.join(lacks)}")
    own = own_names(group)
    for name in names_of(kind, group.tag):
        before = _REGISTERED.get((group.group, name))
        if name in own:
            raise ValueError(f"the name {name!r} is taken by a {group.what} of this package; choose another")
        if before is not None and _place(before) != _place(kind):
            raise ValueError(f"the name {name!r} is taken by {_place(before)}; choose another, or unregister that one")
        if taken := [offer for offer in offers(group.group) if offer.name == name]:
            raise ValueError(f"the name {name!r} is taken by {taken[0].text}; choose another, or remove that package")
    _REGISTERED.update({(group.group, name): kind for name in names_of(kind, group.tag)})
    return kind


def unregister(group: Group, kind: type) -> None:
    """Take a registered class away again; nothing happens if it is not registered."""
    for name in names_of(kind, group.tag):
        if _REGISTERED.get((group.group, name)) is kind:
            del _REGISTERED[group.group, name]


def offer_of(group: Group, name: str) -> Offer | None:
    """The entry point behind a name; None if it is built in, registered in this process, or unknown.

    Raises:
        ValueError: two installed packages offer it.
    """
    if (group.group, name) in _REGISTERED or name in own_names(group):
        return None
    found = [offer for offer in offers(group.group) if offer.name == name]
    if len(found) > 1:
        both = " and ".join(offer.source for offer in found)
        raise ValueError(f"{name!r} is offered by {both}, and only one of them can be meant; remove the others")
    return found[0] if found else None


def class_named(group: Group, name: str) -> type | None:
    """The class behind a name that is not built in; None if nobody has it. An installed package is imported.

    Raises:
        NotPermitted: the package is not permitted here.
        ValueError: it cannot be imported, or is none of this group; in words.
    """
    if (kind := _REGISTERED.get((group.group, name))) is not None:
        return kind
    if (offer := offer_of(group, name)) is None:
        return None
    permitted = _PERMITTED.get()
    if permitted != "all" and permitted.get(offer.distribution) != offer.digest:
        raise NotPermitted(offer)
    return _loaded(group, offer)


@lru_cache(maxsize=256)
def _loaded(group: Group, offer: Offer) -> type:
    kind = load(offer)
    lacks = complaints(group, kind)
    if not lacks and offer.name not in names_of(kind, group.tag):  # type: ignore[arg-type]
        lacks = [f"its field {group.tag} must be the literal {offer.name!r}, as its entry point says"]
    if lacks or not isinstance(kind, type):
        raise ValueError(f"{offer.text} is no {group.what}: {'; '.join(lacks)}; repair or remove that package")
    return kind


def complaints(group: Group, kind: object) -> list[str]:
    """What a class lacks to be one of the group; empty = nothing."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return ["it must be a frozen dataclass, whose fields are the keys in YAML"]
    found = []
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        found.append("its dataclass must be frozen: @dataclass(frozen=True, kw_only=True)")
    config = getattr(kind, "__pydantic_config__", {})
    if not isinstance(config, Mapping) or config.get("extra") != "forbid":
        found.append('it needs __pydantic_config__: ClassVar = {"extra": "forbid"}, so that unknown keys are told')
    try:
        names = names_of(kind, group.tag)
    except Exception as error:  # hints are its own code
        return [*found, f"its annotations cannot be read ({type(error).__name__}: {error})"]
    if not names or not all(isinstance(name, str) for name in names):
        found.append(f'it needs a field {group.tag}: Literal["..."] = "...", its name in YAML')
    return found + _unlike(group.needs, kind)


def _unlike(protocol: type, kind: type) -> list[str]:
    """Members of the Protocol that a class lacks, or has with other arguments."""
    found = []
    fields = {one.name for one in dataclasses.fields(kind)}
    members = {name: member for base in reversed(protocol.__mro__) for name, member in vars(base).items()}
    for name, member in members.items():
        if name.startswith("_"):
            continue
        if not hasattr(kind, name) and name not in fields:
            found.append(f"{name} is missing")
        elif inspect.isfunction(member) and not _takes(getattr(kind, name, None), member):
            found.append(f"{name} must take {inspect.signature(member)}".replace("(self, ", "("))
    return found


def _takes(function: object, like: types.FunctionType) -> bool:
    if not callable(function):
        return False
    wanted = inspect.signature(like).parameters.values()
    placed = [None for one in wanted if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: None for one in wanted if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(function).bind(*placed, **named)
    except (TypeError, ValueError):
        return False
    return True


def _place(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=256)
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _other(group: Group, known: tuple[str, ...], value: Any) -> Any:
    """Settings whose tag is not in the union: of a class that is looked up now, or an error as pydantic tells it."""
    from pydantic import ValidationError
    from pydantic_core import PydanticKnownError

    if not isinstance(value, dict):
        if isinstance(value, tuple(kind for (name, _), kind in _REGISTERED.items() if name == group.group)):
            return value
        raise PydanticKnownError("dict_type")
    if group.tag not in value:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": f"'{group.tag}'"})
    name = value[group.tag]
    kind = class_named(group, name) if isinstance(name, str) else None
    if kind is None:
        tags = ", ".join(f"'{one}'" for one in (*known, *other_names(group)))
        told = {"discriminator": f"'{group.tag}'", "tag": str(name), "expected_tags": tags}
        raise PydanticKnownError("union_tag_invalid", told)
    try:
        return _adapter(kind).validate_json(json.dumps(value), strict=True)
    except (ValidationError, NotPermitted):
        raise
    except Exception as error:  # its own code, in __post_init__ or in annotations
        raise ValueError(f"{group.what} {name!r} cannot be made ({type(error).__name__}: {error})") from error
