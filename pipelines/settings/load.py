"""From the name of a settings file to the settings of a run."""

from __future__ import annotations

from pipelines.loader.document import Document
from pipelines.loader.files import document
from pipelines.loader.validation import validate
from pipelines.settings.config import Config
from pipelines.settings.own_policies import with_own_policies
from pipelines.settings.sites import missing_files
from privacy.message import Json, as_mapping
from privacy.settings_error import Problem


def load(name: str) -> Config:
    """Read and check a configuration.

    Raises:
        ConfigError: everything that is wrong with it, or that it does not exist.
    """
    return configured(document(name), files=False)


def configured(said: Document, *, files: bool = True) -> Config:
    """Check a configuration, and put the hospitals' own policies into it. files: whether their files must be there.

    Raises:
        ConfigError: all that is wrong; `FilesMissing` where only files are missing.
    """
    return with_own_policies(validate(said, Config, missing if files else None))


def missing(data: Json) -> list[Problem]:
    """Folders and files of the hospitals that are not on this machine."""
    sites = as_mapping(as_mapping(data).get("sites"))
    return [each.within("sites", name) for name, site in sites.items() for each in missing_files(site)]
