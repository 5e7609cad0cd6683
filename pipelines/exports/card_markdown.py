"""A model card as Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from pipelines.exports.card import Card
from privacy.message import as_list, as_mapping


def render_markdown(card: Card) -> str:
    """The card as a page of text."""
    return (
        "\n".join(
            (
                *_model(card),
                *_list_data_lines(card),
                *_list_score_lines(card),
                *_list_privacy_lines(card),
                *_list_use_lines(card),
            )
        )
        + "\n"
    )


def _model(card: Card) -> Iterator[str]:
    """Lines on the model: what it is, and how it was made."""
    model, method, preparation = card.model, card.method, card.preparation
    yield f"# Model card: {model.label} of {model.site or 'a hospital'}"
    yield ""
    yield f"**{card.leaves}**"
    yield ""
    rounds = "average of rounds up to" if model.checkpoint == "average" else "round"
    yield f"- Digest of the model's file: `{model.digest}`; run `{model.run}`, {rounds} {model.round}"
    yield f"- Network: `{json.dumps(model.network)}`, {model.parameters:,} numbers"
    order = "; they are ordered, and the predicted one is the median" if preparation.get("ordered") is True else ""
    names = ", ".join(map(str, as_list(preparation["classes"])))
    several = preparation["task"] == "findings"
    task = f"several findings, each for itself: {names}" if several else f"{preparation['task']} into {names}{order}"
    each_region = as_mapping(preparation.get("regions", {})).items()
    regions = [f"{name} ({', '.join(map(str, as_list(members)))})" for name, members in each_region]
    task += f"; told of as regions, each a union of classes: {', '.join(regions)}" if regions else ""
    yield f"- Task: {task}"
    yield f"- Method: `{json.dumps(method.settings)}`. {method.what}"
    if method.calibration:
        yield f"- Calibrated by its hospital: `{json.dumps(method.calibration)}`"
    if settings := card.settings:
        yield f"- Settings of the run: sha256 `{settings.sha256}`"
        yield f"- Artifacts: {', '.join(f'`{why}`' for stage, why in settings.stages.items() if stage != 'report')}"
    yield ""


def _list_data_lines(card: Card) -> Iterator[str]:
    """Lines on the training data."""
    yield "## Training data"
    yield ""
    data = card.training_data
    if data is None:
        yield "Not stated: the card was written without the report of the run."
    else:
        yield f"{data.hospitals} hospitals took part. Counts of {data.site}, as released ({data.counted}):"
        yield ""
        several = card.preparation["task"] == "findings"
        yield f"| split | patients | images | {'images with a finding' if several else 'positive images'} |"
        yield "| --- | --- | --- | --- |"
        for split in data.splits:
            numbers = " | ".join(_format_count(count) for count in (split.patients, split.images, split.positives))
            yield f"| {split.split} | {numbers} |"
    yield ""


def _list_score_lines(card: Card) -> Iterator[str]:
    """Lines on scores of test patients."""
    yield "## Scores on test patients"
    yield ""
    if not card.scores:
        yield "None are stated."
    else:
        yield "| measure | value | 95 % interval | patients | |"
        yield "| --- | --- | --- | --- | --- |"
        for row in card.scores:
            weak = "" if row.assessable else "too few to be judged"
            between = f"{_format_number(row.low)} to {_format_number(row.high)}"
            yield (
                f"| {row.measure} | {_format_number(row.value)} | {between} | {_format_count(row.patients)} | {weak} |"
            )
    yield ""


def _list_privacy_lines(card: Card) -> Iterator[str]:
    """Lines on the promise to patients and what an attack found."""
    yield "## Privacy"
    yield ""
    statement, training = card.privacy.statement, card.privacy.training
    yield (
        "Trained without differential privacy."
        if training is None
        else f"Trained with differential privacy: `{json.dumps(training)}`."
    )
    if statement is not None:
        epsilon = "∞" if statement.epsilon == "Infinity" else f"{statement.epsilon:g}"
        yield ""
        yield f"All releases of this hospital until {statement.last}, this model's training among them:"
        yield ""
        yield (
            f"- ε = {epsilon} at δ = {statement.delta:g} for one {statement.unit}; accountant: {statement.accountant}"
        )
        yield f"- Adjacency: {statement.adjacency}"
        yield f"- {statement.meaning}"
        yield "- Outside this claim:"
        yield from (f"    - {sentence}" for sentence in statement.outside)
    attack = card.privacy.attack
    if attack is not None:
        yield ""
        auc_text = f"AUC {_format_number(attack.auc)} ({_format_number(attack.low)} to {_format_number(attack.high)})"
        yield f"Membership attack by the hospital itself: {attack.note if math.isnan(attack.auc) else auc_text}."
    yield ""


def _list_use_lines(card: Card) -> Iterator[str]:
    """Lines on how an example is prepared, and on limits."""
    yield "## What an example is"
    yield ""
    yield "```json"
    yield json.dumps(card.preparation, indent=1)
    yield "```"
    yield ""
    yield "## Intended use and limits"
    yield ""
    yield card.intended_use
    yield ""
    yield from (f"- {limit}" for limit in card.limits)
    yield f"- {card.unlike_studies}"
    yield ""
    yield "## Licence"
    yield ""
    yield card.licence


def _format_number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _format_count(value: float) -> str:
    return f"{value:g}"
