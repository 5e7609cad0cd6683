"""Which lines of a run are compared with the oracle, and which line outside is the one that nothing was done to."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.oracle_gap import Compared
from pipelines.loader.validation import to_plain
from pipelines.runs.store import digest_json
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW, Oracle
from pipelines.settings.image_spaces import image_space


def list_oracle_comparisons(config: Config) -> tuple[Compared, ...]:
    """For each method and network the lines whose share of the oracle gap can be told: one of them learns from images
    as they were read, and one, with the same start and work, from the same patients on the target's scanner. Where
    several pairs do, the one without a start counts.
    """
    methods = config.train.methods
    kinds: dict[str, list[str]] = {}
    for label, method in methods.items():
        kinds.setdefault(digest_json([to_plain(method), to_plain(config.model_of(label))]), []).append(label)
    comparisons = []
    for labels in kinds.values():
        pairs = sorted(_list_oracle_pairs(config, labels), key=lambda pair: config.train.start_of(pair[0]) is not None)
        if pairs:
            other_labels = [label for label in labels if label not in pairs[0]]
            variants = [label for label, variant in config.evaluate.variants.items() if variant.of in labels]
            comparisons.append(Compared(*pairs[0], (*other_labels, *variants)))
    return tuple(comparisons)


def _list_oracle_pairs(config: Config, labels: list[str]) -> Iterator[tuple[str, str]]:
    """Lines on images as they were read, each with its oracle."""
    spaces = {} if config.harmonize is None else config.harmonize.translate
    for raw in (label for label in labels if image_space(config, label) == RAW):
        for best in (label for label in labels if isinstance(spaces.get(image_space(config, label)), Oracle)):
            if all(
                _learning_settings(config, raw, site) == _learning_settings(config, best, site) for site in config.sites
            ):
                yield raw, best


def _learning_settings(config: Config, label: str, site: str) -> object:
    """What else than images can differ between two lines of a method."""
    return config.train.start_of(label), config.work(label, site), config.method(label, site)


def find_untreated_line(config: Config) -> str | None:
    """The line of `route` that outside hospitals' gains are over: a model as it was trained, on images as they were
    read, if possible without a start; None if there is none.
    """
    if config.route is None:
        return None
    still = [
        (label, method)
        for label, line in config.route.lines.items()
        if line.how.name == "as_trained"
        for method in config.route.methods(line).values()
        if image_space(config, method) == RAW
    ]
    first = sorted(still, key=lambda pair: config.train.start_of(pair[1]) is not None)
    return first[0][0] if first else None
