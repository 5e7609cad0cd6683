"""Which lines of a run's tables a hospital keeps to itself, and which are a federation's, compared with those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from federation.alone import Alone
from federation.as_begun import AsBegun
from federation.rounds import method_schedule
from personalize.at_home import AtHome, is_trained_alone
from personalize.prompts import ZeroShot
from pipelines.settings.harmonization import Oracle
from pipelines.settings.image_spaces import image_space
from pipelines.settings.run_settings import RunSettings

CENTRAL = "central"


class Lines(NamedTuple):
    """Labels in the order of the settings. home: methods in which no other hospital has a part, floors before others.
    federated: the rest, with their variants.
    """

    home: tuple[str, ...]
    federated: tuple[str, ...]


def split_lines(config: RunSettings) -> Lines:
    """The lines of a run that gives labels; none where it learns masks, for which there is no classical floor.

    A method on images in the look of another hospital is no line at home. Neither home's nor the federation's are
    pooled images, which no real federation has, oracles, which have images that no hospital has, and variants of lines
    at home.
    """
    if config.task.kind == "segmentation":
        return Lines((), ())
    methods = config.train.methods
    federated = [label for label in methods if not _stays_home(config, label) and _can_be_real(config, label)]
    variants = [label for label, variant in config.evaluate.variants.items() if variant.of in federated]
    home = [label for label in methods if _stays_home(config, label)]
    home.sort(key=lambda label: not isinstance(methods[label], Alone))
    return Lines((*home,), (*federated, *variants))


def pair_home_lines(config: RunSettings) -> dict[str, str]:
    """Federated label -> the label of the same method at each hospital alone, on the same images, with the same network
    and as much of the same work; so what the first gains over the second is due to other hospitals. Of equal lines at
    home it is the first.
    """
    pairs: dict[str, str] = {}
    for label, home in _list_pairs(config):
        pairs.setdefault(label, home)
    return pairs


def list_unpaired_home_lines(config: RunSettings) -> list[str]:
    """Labels of methods at each hospital alone of which no line is the same in the federation."""
    paired = {home for _, home in _list_pairs(config)}
    return [label for label in list_at_home(config) if label not in paired]


def _list_pairs(config: RunSettings) -> Iterator[tuple[str, str]]:
    """Labels of a method in the federation and of the same method at home, under the same conditions."""
    sites = [site for site in config.sites if site not in config.outside]
    methods, schedule = config.train.methods, config.train.schedule

    def read_conditions(label: str) -> tuple[object, ...]:
        works = [config.work(label, site) for site in sites]
        updates = method_schedule(methods[label], schedule).count_updates(sites)
        return config.model_of(label), image_space(config, label), config.train.start_of(label), works, updates

    def is_same(label: str, home: str) -> bool:
        pairs = [(config.method(label, site), config.method(home, site)) for site in sites]
        return all(isinstance(alone, AtHome) and alone.of == method for method, alone in pairs)

    for home in list_at_home(config):
        for label in methods:
            if is_same(label, home) and read_conditions(label) == read_conditions(home):
                yield label, home


def list_at_home(config: RunSettings) -> list[str]:
    """Labels of methods that run at each hospital alone, beside themselves in the federation."""
    return [label for label, method in config.train.methods.items() if isinstance(method, AtHome)]


def asks_comparisons(config: RunSettings) -> bool:
    """Whether hospitals tell how models compare on their validation patients: not in a private run, nor of masks; and
    where there is one hospital, only if a line is to be chosen by it.
    """
    sites = len(config.sites) - len(config.outside)
    labels = config.privacy == "none" and config.task.target is None and bool(config.train.methods)
    return labels and (sites > 1 or len(split_lines(config).home) > 1)


def _stays_home(config: RunSettings, label: str) -> bool:
    """Whether a method needs nothing of another hospital: it learns alone or not at all, from its own images."""
    method, translated = config.train.methods[label], config.harmonize.translate if config.harmonize else {}
    alone = is_trained_alone(method) or isinstance(method, AsBegun | ZeroShot)
    return alone and method.name != CENTRAL and image_space(config, label) not in translated


def _can_be_real(config: RunSettings, label: str) -> bool:
    """Whether real hospitals could have a method."""
    spaces = config.harmonize.translate if config.harmonize else {}
    return config.train.methods[label].name != CENTRAL and not isinstance(
        spaces.get(image_space(config, label)), Oracle
    )
