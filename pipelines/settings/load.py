"""Load a run's settings from a file; each hospital's own policy.yaml overrides the policy in the YAML."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from federation.installed import Offer
from federation.origins import find_permission_problems, list_packages_in
from pipelines.loader.document import ConfigError, Document, parse_document, render
from pipelines.loader.files import find_document
from pipelines.loader.validation import validate_settings
from pipelines.settings.benchmark import BenchmarkSettings
from pipelines.settings.config import Config
from pipelines.settings.public_pictures import find_missing_pictures
from pipelines.settings.sites import Elsewhere, SiteSettings, find_missing_site_files
from privacy.message import Json, as_mapping
from privacy.release.policy import Policy
from privacy.settings_error import Problem, SettingsError

C = TypeVar("C", Config, BenchmarkSettings)
POLICY = "policy.yaml"
"""A hospital's own policy, in its `home` folder; it overrides that of the configuration."""


def load_config(name: str) -> Config:
    """Read and check a configuration.

    Raises:
        ConfigError: everything that is wrong with it, or it does not exist.
    """
    return check_config(find_document(name), files=False)


def check_config(document: Document, *, files: bool = True) -> Config:
    """Check a configuration, and insert the hospitals' own policies. files: whether their files must exist.

    Raises:
        ConfigError: all that is wrong; `FilesMissing` if only files are missing.
    """
    return apply_own_policies(validate_settings(document, Config, find_missing_files if files else None))


def check_benchmark(document: Document, *, files: bool = True) -> BenchmarkSettings:
    """As `check_config`, for a benchmark."""
    return apply_own_policies(validate_settings(document, BenchmarkSettings, find_missing_files if files else None))


def find_missing_files(data: Json) -> list[Problem]:
    """A problem for each folder and file, of hospitals or public, that does not exist on this machine."""
    sites, public = (as_mapping(as_mapping(data).get(key)) for key in ("sites", "public_pictures"))
    problems = [each.within("sites", name) for name, site in sites.items() for each in find_missing_site_files(site)]
    return problems + [
        each.within("public_pictures", name)
        for name, pictures in public.items()
        for each in find_missing_pictures(pictures)
    ]


def apply_own_policies(config: C) -> C:
    """The configuration with each hospital's own `policy.yaml` in place of its policy in the YAML.

    Raises:
        ConfigError: everything that is wrong with such a file, or with the run under such policies; or the settings
        name
            installed packages that a policy does not permit.
    """
    sites, problems = dict(config.sites), []
    for name, site in config.sites.items():
        path, home_key = Path(site.home or "") / POLICY, ("sites", name, "home")
        if site.home is not None and site.source.kind != "phantom" and not Path(site.home).is_dir():
            problems.append(Problem(home_key, f"no such folder: {site.home}; make it, or correct it"))
        if site.home is None or not (path.is_file() or path.is_symlink()):
            continue
        try:
            policy = validate_settings(parse_document(path.read_text(encoding="utf-8"), environment=os.environ), Policy)
            sites[name] = replace(site, policy=policy)
        except ConfigError as error:
            problems += [Problem(home_key, text) for text in render(error, str(path)).split("\n")]
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(home_key, f"{path} cannot be read ({error}); mend it"))
    if problems:
        raise ConfigError(problems)
    if sites == dict(config.sites):
        return _check_permitted(config)
    try:
        return _check_permitted(replace(config, sites=sites))
    except SettingsError as error:
        context = f"under the hospitals' own policies ({POLICY})"
        raise ConfigError([replace(each, message=f"{context}: {each.message}") for each in error.problems]) from error


def _check_permitted(config: C) -> C:
    """The configuration, if the policies of the hospitals on this machine permit the installed packages that it names.

    Raises:
        ConfigError: some do not.
    """
    common: tuple[Offer, ...] = ()  # each hospital checks a benchmark's models
    if isinstance(config, Config):
        common = list_packages_in(config.train, config.model, config.harmonize, config.augment, config.route)
    if problems := _find_unpermitted(config.sites, common):
        raise ConfigError(problems)
    return config


def _find_unpermitted(sites: Mapping[str, SiteSettings], common: Iterable[Offer]) -> list[Problem]:
    """A problem for each package that the policy of a hospital on this machine does not permit. common: those all
    need.
    """
    return [
        Problem(("sites", name, "policy"), text)
        for name, site in sites.items()
        if not isinstance(site.source, Elsewhere)
        for text in find_permission_problems({*common, *list_packages_in(site)}, site.policy.plugins)
    ]


def simulated_sites(config: Config) -> dict[str, SiteSettings]:
    """Settings of the sites that this machine simulates. They take the run's name for the unit of privacy, unless a
    site has a `home` or its own name for it.
    """
    return {name: _add_unit(config, site) for name, site in config.sites.items()}


def _add_unit(config: Config, site: SiteSettings) -> SiteSettings:
    """A site's settings with the run's name for the unit of privacy, unless it has a `home` or its own name."""
    if site.home is not None or config.privacy == "none" or site.policy.unit != Policy.unit:
        return site
    return replace(site, policy=replace(site.policy, unit=config.privacy.unit))
