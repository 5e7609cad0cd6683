"""The same settings with some fields changed, checked as strictly as if they had been written so."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pipelines.loader.validation import to_plain
from privacy.settings_error import Problem, SettingsError, problems_of

T = TypeVar("T")


def overridden(settings: T, changes: Mapping[str, Any]) -> T:
    """The same settings with some fields changed, checked as strictly as if they had been written so.

    Raises:
        ValueError: an unknown field, a wrong type, or a value out of range; all of them (`SettingsError`).
    """
    changed = {**_plain(settings), **changes}
    for one, other in (("epochs", "steps"), ("steps", "epochs")):  # naming one of the two means it
        if one in changes and other not in changes and other in changed:
            changed[other] = None
    try:
        found: T = _adapter(cast(Hashable, type(settings))).validate_json(json.dumps(changed), strict=True)
        return found
    except ValidationError as error:
        raise SettingsError([problem for each in error.errors() for problem in _told(each)]) from error


def _told(error: ErrorDetails) -> list[Problem]:
    if error["type"] == "value_error":
        return [problem.within(*error["loc"]) for problem in problems_of(error["ctx"]["error"])]
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return [Problem(error["loc"], "unknown key; correct or remove it")]
    return [Problem(error["loc"], error["msg"])]


@lru_cache(maxsize=128)
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    """Made once a type: a hospital overrides its settings in every request."""
    return TypeAdapter(cast("type[Any]", kind))


def _plain(settings: object) -> dict[str, Any]:
    plain = to_plain(settings)
    if not isinstance(plain, dict):
        raise TypeError(f"only a group of settings can be overridden, found {type(settings).__name__}")
    return plain
