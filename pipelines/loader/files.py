"""Finds and reads a settings file: here, or among those that come with the package."""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.loader.document import ConfigError, Document, parsed
from privacy.settings_error import Problem

CONFIGS = Path(__file__).parents[1] / "configs"


def document(name: str) -> Document:
    """Read a YAML file, found here or among those that come with the package.

    Raises:
        ConfigError: it does not exist, or is no YAML. What else is wrong with its text stands in `Document.problems`.
    """
    path = next((place for place in (Path(name), CONFIGS / name) if place.is_file()), None)
    if path is None:
        known = ", ".join(sorted(p.name for p in CONFIGS.glob("*.yaml")))
        raise ConfigError((Problem((), f"no such file here, nor among those of the package ({known})"),))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        text = f"not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        raise ConfigError((Problem((), text),)) from error
    return parsed(text, environment=os.environ)
