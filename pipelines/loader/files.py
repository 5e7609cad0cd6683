"""Find and read a settings file: at its path, or among those of the package."""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.loader.document import ConfigError, Document, parse_document
from privacy.settings_error import Problem
from privacy.system_errors import of_machine

CONFIGS = Path(__file__).parents[1] / "configs"


def find_document(name: str) -> Document:
    """Read a YAML file at this path, or of this name in the package; `.yaml` may be left out.

    Raises:
        ConfigError: it does not exist, or is not YAML. Other problems of its text are in `Document.problems`.
    """
    return read_document(find_file(name))


def find_file(name: str) -> Path:
    """The YAML file at this path, or of this name in the package; `.yaml` may be left out.

    Raises:
        ConfigError: there is none.
    """
    names = (name,) if name.endswith(".yaml") else (name, f"{name}.yaml")
    places = (folder / file_name for folder in (Path(), CONFIGS) for file_name in names)
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        known = ", ".join(sorted(p.name for p in CONFIGS.glob("*.yaml")))
        raise ConfigError((Problem((), f"no such file here, nor among those of the package ({known})"),))
    return path


def read_document(path: str | Path) -> Document:
    """Read the YAML file at exactly this path. Raises: ConfigError: as `document`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        raise ConfigError((Problem((), problem),)) from error
    except OSError as error:
        if of_machine(error):
            raise
        problem = f"cannot be read: {error.strerror or type(error).__name__}; name a file that you may read"
        raise ConfigError((Problem((), problem),)) from error
    return parse_document(text, environment=os.environ)
