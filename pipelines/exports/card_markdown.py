"""A model card as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def markdown(card: Mapping[str, Any]) -> str:
    """The card (`pipelines.exports.card.card`) as a page of text."""
    return "\n".join((*_model(card), *_data(card), *_scores(card), *_privacy(card), *_use(card))) + "\n"


def _model(card: Mapping[str, Any]) -> Iterator[str]:
    model, method, said = card["model"], card["method"], card["preparation"]
    yield f"# Model card: {model['label']} of {model['site'] or 'a hospital'}"
    yield ""
    yield f"**{card['leaves']}**"
    yield ""
    yield f"- Digest of the model's file: `{model['digest']}`; run `{model['run']}`, round {model['round']}"
    yield f"- Network: `{json.dumps(model['network'])}`, {model['parameters']:,} numbers"
    yield f"- Task: {said['task']} into {', '.join(said['classes'])}"
    yield f"- Method: `{json.dumps(method['settings'])}`. {method['what']}"
    if method["calibration"]:
        yield f"- Calibrated by its hospital: `{json.dumps(method['calibration'])}`"
    if settings := card["settings"]:
        yield f"- Settings of the run: sha256 `{settings['sha256']}`"
        yield f"- Artifacts: {', '.join(f'`{why}`' for stage, why in settings['stages'].items() if stage != 'report')}"
    yield ""


def _data(card: Mapping[str, Any]) -> Iterator[str]:
    yield "## Training data"
    yield ""
    data = card["training_data"]
    if data is None:
        yield "Not stated: the card was written without the report of the run."
    else:
        yield f"{data['hospitals']} hospitals took part. Counts of {data['site']}, as released ({data['counted']}):"
        yield ""
        yield "| split | patients | images | positive images |"
        yield "| --- | --- | --- | --- |"
        for one in data["splits"]:
            numbers = " | ".join(_count(one[what]) for what in ("patients", "images", "positives"))
            yield f"| {one['split']} | {numbers} |"
    yield ""


def _scores(card: Mapping[str, Any]) -> Iterator[str]:
    yield "## Scores on test patients"
    yield ""
    if not card["scores"]:
        yield "None are stated."
    else:
        yield "| measure | value | 95 % interval | patients | |"
        yield "| --- | --- | --- | --- | --- |"
        for row in card["scores"]:
            weak = "" if row["assessable"] else "too few to be judged"
            between = f"{_number(row['low'])} to {_number(row['high'])}"
            yield f"| {row['measure']} | {_number(row['value'])} | {between} | {_count(row['patients'])} | {weak} |"
    yield ""


def _privacy(card: Mapping[str, Any]) -> Iterator[str]:
    yield "## Privacy"
    yield ""
    said, training = card["privacy"]["statement"], card["privacy"]["training"]
    yield (
        "Trained without differential privacy."
        if training is None
        else f"Trained with differential privacy: `{json.dumps(training)}`."
    )
    if said is not None:
        epsilon = "∞" if said["epsilon"] == "Infinity" else f"{said['epsilon']:g}"
        yield ""
        yield f"All releases of this hospital until {said['last']}, this model's training among them:"
        yield ""
        yield f"- ε = {epsilon} at δ = {said['delta']:g} for one {said['unit']}; accountant: {said['accountant']}"
        yield f"- Adjacency: {said['adjacency']}"
        yield f"- {said['meaning']}"
        yield "- Outside this claim:"
        yield from (f"    - {one}" for one in said["outside"])
    attack = card["privacy"]["attack"]
    if attack is not None:
        yield ""
        told = f"AUC {_number(attack['auc'])} ({_number(attack['low'])} to {_number(attack['high'])})"
        yield f"Membership attack by the hospital itself: {told if attack['auc'] is not None else attack['note']}."
    yield ""


def _use(card: Mapping[str, Any]) -> Iterator[str]:
    yield "## What an example is"
    yield ""
    yield "```json"
    yield json.dumps(card["preparation"], indent=1)
    yield "```"
    yield ""
    yield "## Intended use and limits"
    yield ""
    yield str(card["intended_use"])
    yield ""
    yield from (f"- {one}" for one in card["limits"])
    yield f"- {card['unlike_studies']}"
    yield ""
    yield "## Licence"
    yield ""
    yield str(card["licence"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _count(value: float) -> str:
    return f"{value:g}"
