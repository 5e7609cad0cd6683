"""Change some fields of settings, with the same checks as for settings in a file."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from pipelines.loader.document import Document
from pipelines.loader.validation import adapter_of, problems_in, to_plain
from privacy.message import as_mapping
from privacy.settings_error import SettingsError

T = TypeVar("T")


def override_settings(settings: T, changes: Mapping[str, Any]) -> T:
    """The settings with some fields changed, checked as strictly as settings in a file.

    Raises:
        ValueError: an unknown field, a wrong type, or a value out of range; all of them (`SettingsError`).
    """
    if not changes:
        return settings
    changed = {**as_mapping(to_plain(settings)), **changes}
    for key, other in (("epochs", "steps"), ("steps", "epochs")):  # setting one of the two unsets the other
        if key in changes and other not in changes and other in changed:
            changed[other] = None
    try:
        result: T = adapter_of(cast(Hashable, type(settings))).validate_json(json.dumps(changed), strict=True)
        return result
    except ValidationError as error:
        raise SettingsError(problems_in(error, Document(changed, {}), type(settings))) from error
