"""Harmonization on the coordinator's page, from sites' replies and synthetic images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evaluation.drawing import Picture
from evaluation.harmony import COLUMNS, Harmony, ScoreLine, SpaceRow, as_number
from evaluation.maps import shared_map
from evaluation.pictures import contact_sheet
from evaluation.records import AugmentedRow
from evaluation.tiles import Tile
from harmonize.complexity import Score
from harmonize.embedding import FEWEST, compute_basis, project_images, tsne
from harmonize.prior import PRIORS, draw_pictures
from harmonize.synthesis import make_protection
from harmonize.wgan import WganGp, compute_true_cost
from pipelines.coordinator.artifacts import OUTSIDE_FOLDER, SHARED, read_counts, read_replies, read_target
from pipelines.coordinator.world import World
from pipelines.requests.augment import AUGMENT, Judged
from pipelines.requests.translate import TRANSLATE, Translated
from pipelines.runs.store import read_manifest
from pipelines.settings.harmonization import AnyShared, Harmonize, Public
from privacy.message import from_bytes

TILES = 8
"""Images shown per class."""
POINTS = 250
"""Images of each kind that become points."""
SEED = 0
"""Of the public images and of t-SNE."""


def build_harmony(world: World, inputs: Mapping[str, Path]) -> Harmony | None:
    """What was harmonized and how; None if nothing was."""
    plan = world.config.harmonize
    if plan is None:
        return None
    chosen = read_target(inputs["score"])
    scores = (ScoreLine(site, float(reply.score), as_number(reply.deviation)) for site, reply in chosen.scores.items())
    patients = read_counts(inputs["ingest"])[chosen.target].splits["train"]["patients"]
    return Harmony(
        target=chosen.target,
        release=chosen.release,
        synthesis=describe_synthesis(plan.synthesis, patients=patients),
        selected=_describe_shared_images(plan, read_manifest(inputs["sample"])["summary"]),
        scores=tuple(scores),
        rows=tuple(
            build_space_row(site, space, translator.name, reply, site == chosen.target and translator.learns)
            for space, translator in plan.translate.items()
            for site, reply in _read_translations(inputs, space).items()
        ),
        shared=tuple(_draw_shared_images(inputs["sample"], plan)),
        maps=tuple(_draw_points(inputs["sample"], plan, world)),
    )


def _read_translations(inputs: Mapping[str, Path], space: str) -> dict[str, Translated]:
    """Every hospital's reply for a space; those of external sites last, and marked."""
    replies = dict(read_replies(TRANSLATE, inputs["translate"] / f"{space}.json"))
    file = inputs["route"] / OUTSIDE_FOLDER / f"{space}.json" if "route" in inputs else None
    if file is not None and file.is_file():
        replies |= {f"{site} (outside)": reply for site, reply in read_replies(TRANSLATE, file).items()}
    return replies


def describe_synthesis(synthesis: AnyShared, *, patients: int | None = None) -> str:
    """How images were synthesized, and with which guarantee. patients: number of the target's training patients, if
    known; the true epsilon of the paper's noise depends on it.
    """
    if synthesis.name == "real":
        return "none: the target's own training images, as they are, in a simulation"
    if isinstance(synthesis, Public):
        return "none: pictures of a public prior, which no patient shaped (ε = 0)"
    promise = "without noise: no guarantee"
    if isinstance(synthesis, WganGp) and not synthesis.private and synthesis.epsilon is not None:
        claimed = f"the paper's noise for a claimed ε = {synthesis.epsilon:g}"
        promise = f"{claimed}, as printed; unclipped, it buys no finite ε"
    if synthesis.private:
        promise = f"patient-level ε = {synthesis.epsilon:g} at δ = {synthesis.delta:g}"
        if getattr(synthesis, "variant", "") == "paper":
            truly = "the ledger says what it truly buys"
            truly = truly if patients is None else _describe_true_loss(synthesis, patients)
            promise = f"the paper's noise for a claimed ε = {synthesis.epsilon:g}; {truly}"
    return f"{synthesis.name}, {promise}"


def _describe_true_loss(settings: AnyShared, patients: int) -> str:
    """The true epsilon of variant `paper`'s noise, whatever is claimed for it."""
    if not isinstance(settings, WganGp):
        return ""
    cost = compute_true_cost(settings.at(patients), make_protection(settings, patients=patients).noise)
    return f"with {patients} training patients it truly buys ε = {cost.epsilon:.3g} at δ = {settings.delta:g}"


def _describe_shared_images(plan: Harmonize, summary: Mapping[str, Any]) -> str:
    """How the shared images were chosen, in words."""
    if isinstance(plan.synthesis, Public):
        return f"{summary['images']} pictures of the prior {summary['prior']}, drawn at random"
    return describe_selection("" if plan.synthesis.name == "real" else plan.sampling.name, summary)


def describe_selection(rule: str, summary: Mapping[str, Any]) -> str:
    """How the shared images were chosen. rule: empty where the target's own images are shared."""
    if not rule:
        return f"{summary['images']} of its training images, drawn at random"
    refused = ", ".join(f"{summary[name]} {why}" for name, why in _WHY.items() if summary.get(name))
    tried = f"of {summary['tried']} candidates" if "tried" in summary else "images"
    doubled = f"; its closeness was doubled {summary['doubled']} times" if summary.get("doubled") else ""
    return f"{summary['images']} {tried}, by the rule {rule}{': refused ' + refused if refused else ''}{doubled}"


_WHY = {
    "far": "that no reference resembles",
    "near": "too near to a reference",
    "same": "too near to one that was taken",
}


def build_space_row(site: str, space: str, translator: str, reply: Translated, is_target: bool) -> SpaceRow:
    """A row of the table of spaces."""
    quality = {name: as_number(reply.quality.get(name)) for name in COLUMNS}
    note = ""
    if not reply.quality:
        note = "the target: its images are as they were" if is_target else "not judged"
    return SpaceRow(site, space, translator, tuple(reply.vetoed), quality, note)


def _draw_shared_images(artifact: Path, plan: Harmonize) -> list[Picture]:
    """Some of the shared images, if they are synthetic."""
    if plan.synthesis.name == "real":
        return []  # patients' images belong on the hospital's own page only
    tensors = from_bytes((artifact / SHARED).read_bytes()).tensors
    tiles = []
    for label, name in ((1, "positive"), (0, "negative")):
        for number, row in enumerate((tensors["labels"] == label).nonzero()[:TILES, 0].tolist()):
            image = (tensors["images"][row] + 1) / 2
            shown = image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy()
            caption = f"synthetic {number + 1}{'' if plan.sampling.variant == 'paper' else f', {name}'}"
            tiles.append(Tile(image=shown, caption=caption))
    sheet = contact_sheet(tiles, title="Shared images", window=(0.0, 1.0))
    if isinstance(plan.synthesis, Public):
        return [Picture(sheet.title, "Drawn by a public prior, from no patient.", sheet.html)]
    caption = "Synthesized by the target hospital, with a guarantee for its patients."
    if not plan.synthesis.private or plan.sampling.name == "raw":
        caption = (
            "Synthesized by the target hospital without a guarantee: such images can resemble those of its patients."
        )
    return [Picture(sheet.title, caption, sheet.html)]


def _draw_points(artifact: Path, plan: Harmonize, world: World) -> list[Picture]:
    """The shared images and public ones as points, if the shared ones imitate a hospital's: as far as the paper's map
    of features can be drawn here, because the points of real images never leave a hospital.
    """
    if plan.synthesis.name == "real" or isinstance(plan.synthesis, Public):
        return []
    tensors = from_bytes((artifact / SHARED).read_bytes()).tensors
    images, labels = tensors["images"], tensors["labels"] > 0
    prior = PRIORS[plan.public_prior(world.config.images)]
    public = draw_pictures(
        prior, torch.arange(min(POINTS, max(FEWEST, len(images)))) % 2, world.config.images.inputs, SEED
    )
    return draw_points(images, labels, public, plan.score)


def draw_points(images: Tensor, labels: Tensor, public: Tensor, score: Score) -> list[Picture]:
    """Shared images (n, C, H, W), positive where labels (n,) say so, and public ones as points of one map."""
    groups = {"shared, positive": images[labels][:POINTS], "shared, negative": images[~labels][:POINTS]}
    groups = {name: group for name, group in {**groups, "public": public}.items() if len(group)}
    both = torch.cat(list(groups.values()))
    projected = project_images(compute_basis(both, score.components), both)
    positions = tsne(projected, perplexity=score.perplexity, seed=SEED)
    parts = torch.split(positions, [len(group) for group in groups.values()])
    named = {name: part.numpy() for name, part in zip(groups, parts, strict=True)}
    return [shared_map(named, title="Shared images beside public ones")]


def list_augmentation_rows(world: World, inputs: Mapping[str, Path]) -> tuple[AugmentedRow, ...]:
    """A row a hospital; none if nothing was augmented."""
    plan, names = world.config.augment, world.config.task.names
    if plan is None:
        return ()
    replies = read_replies(AUGMENT, inputs["augment"] / f"{plan.space}.json")
    rows = []
    for site, reply in sorted(replies.items()):
        label = "" if reply.label is None else str(names[reply.label])
        row = AugmentedRow(site, plan.space, reply.state, label, reply.made)
        if isinstance(reply, Judged):
            far, real, near = map(as_number, (reply.distance, reply.distance_real, reply.near_copies))
            row = replace(row, distance=far, real=real, near_copies=near, compared=reply.compared or 0)
            row = replace(row, features=reply.features)
        rows.append(row)
    return tuple(rows)
