"""What in the settings does not go with what is to be learnt: all of it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.data.images import Slices, Volumes
from pipelines.settings.task import without_masks

if TYPE_CHECKING:
    from pipelines.settings.config import Config


def unfit_task(config: Config) -> list[str]:
    """Sites without what is to be learnt, and settings that make no sense of it."""
    problems = [
        f"sites.{name}.{said}"
        for name, site in config.sites.items()
        for said in without_masks(config.task, site, config.images)
    ]
    if config.task.kind == "classification":
        window = [] if config.evaluate.window is None else ["evaluate.window: it is for masks; remove it"]
        return problems + window
    problems += _unfit_window(config)
    problems += _given_away(config)
    if config.privacy != "none":
        problems.append(
            "task.kind: segmentation is trained privately, but its scores are not released with noise yet; say "
            "privacy: none"
        )
    if config.audit.membership:
        problems.append("audit.membership: it attacks labels of examples, and segmentation has none; say false")
    for label in config.train.methods:
        for name in config.sites:
            try:
                balanced = config.work(label, name).balance
            except ValueError:
                continue  # told as a problem of this site's work
            if balanced:
                problems.append("train.work.balance: it draws labels equally often, and masks have none; say false")
    return list(dict.fromkeys(problems))


def _unfit_window(config: Config) -> list[str]:
    """A window that is no part of an image, or that a network cannot take."""
    window, sides = config.evaluate.window, config.images.inputs[1:]
    if window is None:
        return []
    if len(window) != len(sides) or not all(1 <= side <= most for side, most in zip(window, sides, strict=False)):
        return [f"evaluate.window must have {len(sides)} sides within {list(sides)}, found {list(window)}"]
    problems = []
    for label in config.train.methods:
        model = config.train.method_model.get(label, config.model)
        try:
            model.build(inputs=(config.images.inputs[0], *window), classes=len(config.task.names))
        except ValueError as error:
            problems.append(f"evaluate.window: {error} (method {label})")
    return list(dict.fromkeys(problems))


def _given_away(config: Config) -> list[str]:
    """Images that are cut about the mask that is to be found, so that where it lies says what it is."""
    images = config.images
    if config.task.target == "gland" and isinstance(images, Slices | Volumes) and images.centre == "gland":
        return ["images.centre: images would be cut about the gland, which is what is to be found; say centre: image"]
    if config.task.target == "gland" and isinstance(images, Slices) and images.slices == "gland":
        return ["images.slices: those that show the gland, which is what is to be found; say slices: all"]
    return []
