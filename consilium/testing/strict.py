"""What every class that settings can name keeps: YAML reads it as strictly as ours."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from consilium.testing.held import hold
from federation.promised import list_names
from federation.registry import Group, complaints
from pipelines.loader.validation import to_plain
from privacy.message import Json, as_mapping


def settings_are_read_strictly_and_written_whole(value: object, group: Group) -> None:
    """The class has what its group needs, its plain form is read back as it was, and unknown keys are refused."""
    kind = type(value)
    lacks = complaints(group, kind)
    hold(not lacks, f"{kind.__qualname__} is no {group.what}: {'; '.join(lacks)}")
    hold(getattr(value, group.tag) in list_names(kind, group.tag), f"its {group.tag} is none of its literals")
    plain = as_mapping(to_plain(value))
    read = TypeAdapter(kind)
    again = read.validate_json(json.dumps(plain), strict=True)
    hold(again == value, f"settings are {plain}, and read again {as_mapping(to_plain(again))}")
    unknown_keys_are_refused(kind, group.tag, str(plain[group.tag]), plain)


def unknown_keys_are_refused(kind: type, tag: str, name: str, plain: Mapping[str, Json] | None = None) -> None:
    """Hold that an unknown key is refused, whatever else is missing. plain: its settings, if they are known."""
    try:
        TypeAdapter(kind).validate_json(json.dumps({tag: name, **(plain or {}), "no_such_key": 1}), strict=True)
    except ValidationError as error:
        is_named = any(detail["loc"][-1:] == ("no_such_key",) for detail in error.errors(include_url=False))
        hold(is_named, "an unknown key is not told; it needs __pydantic_config__ with extra forbid")
        return
    hold(False, "an unknown key passes; it needs __pydantic_config__ with extra forbid")
