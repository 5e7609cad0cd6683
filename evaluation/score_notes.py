"""Notes below tables of scores: what measures mean, what scores rest on, and which of them are too weak to judge by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluation.classes import list_mean_classes
from evaluation.grid import weak_rows
from evaluation.measures import select_whole_rows
from evaluation.numbers import Number
from evaluation.page import Block, Paragraph, Span, Text, compose_text, join_texts
from evaluation.records import RunPage, SitePage, Withdrawn
from evaluation.rows import FLOORS, ScoreRow
from evaluation.score_cells import NOT_ASSESSABLE
from evaluation.wording import LISTED, READABLE, Words, format_count, format_whole


def build_score_notes(page: RunPage | SitePage) -> list[Block]:
    """All notes that a page's scores need."""
    methods = {row.method for row in page.scores}
    floor = next((name for name in FLOORS if name in methods), "")
    over = list_mean_classes(page.scores, page.scored_parts, ordered=page.part_word != "class")
    parts = [_describe_parts(page, over)] if over else []
    kinds = [_describe_masks(page, floor)] if page.structures else []
    kinds += [_describe_number(page.number, floor)] if page.number else []
    notes = [*_list_noise(page), *kinds, *_list_weak(page), *parts]
    return [Paragraph(text, "note") for text in notes]


def build_noise_notes(page: RunPage) -> list[Block]:
    """That scores are of noised counts, and which of them rest on too little."""
    return [Paragraph(text, "note") for text in (*_list_noise(page), *_list_weak(page))]


def _list_noise(page: RunPage | SitePage) -> list[Text]:
    """That scores are of noised counts, if they are."""
    noise = max((row.noise for row in page.scores), default=0.0)
    text = compose_text(
        "**These scores come from noised counts**: before they left, each hospital added noise to its histograms of "
        "scores (standard deviation over all: up to {noise} patients in a bin). Every patient weighs the same, and the "
        "intervals include the noise.",
        noise=f"{noise:.3g}",
    )
    return [text] if noise else []


def _describe_number(number: Number, floor: str) -> Text:
    """What is predicted, and how numbers are compared."""
    end = " *{floor}*: the median of the hospital's own training labels for every example." if floor else ""
    return compose_text(
        "Predicted is the **{what}**, between {low} and {high}. *MAE*: mean absolute error, and *RMSE*: root of the "
        "mean squared error, both in that unit; lower is better, and a gain is positive if it fell. *correlation*: "
        "Pearson's, of predicted and given; it is not known of noised scores." + end,
        what=f"{number.what}, in {number.unit}" if number.unit else number.what,
        low=f"{number.low:g}".replace("-", "−"),
        high=f"{number.high:g}".replace("-", "−"),
        floor=floor,
    )


def _describe_masks(page: RunPage | SitePage, floor: str) -> Text:
    """How masks are compared."""
    several = f" Both are means over {', '.join(page.structures)}." if len(page.structures) > 1 else ""
    end = " *{floor}*: one mask for every image, where most of the hospital's own training masks are." if floor else ""
    return compose_text(
        "*Dice*: twice the overlap of the method's and the given mask over the sum of both, of all {examples} of a "
        "patient together; 1 is equal, 0 nothing in common. A patient with neither mask does not count. *HD95*: 95th "
        "percentile of the distances between their outlines in {length}, of each {example}, mean over a patient's "
        "{examples}; lower is better, and a gain is positive if it fell. It has no value for a patient in whom the "
        "method found nothing, so read it together with Dice: “5 of 6 patients” are those who have one.{several}" + end,
        examples=page.words.examples,
        example=page.words.example,
        length=page.words.length,
        several=several,
        floor=floor,
    )


def _list_weak(page: RunPage | SitePage) -> list[Text]:
    """Which hospitals' scores rest on too little, if any do."""
    weak = weak_rows(select_whole_rows(page.scores, page.scored_parts))
    if not weak:
        return []
    noise = ", or too much noise," if any(row.noise for row in weak) else ""
    shown = weak if len(weak) <= READABLE else weak[:LISTED]
    sites = "; ".join(f"{row.sites[0]} ({_describe_support(page, row)})" for row in shown)
    rest = f"; and {len(weak) - LISTED} others" if len(weak) > READABLE else ""
    text = (
        f" too few{noise} to judge by: {sites}{rest}. Such scores are printed, in italics, and left out of means over "
        "hospitals where others can be assessed."
    )
    return [(NOT_ASSESSABLE, text)]


def _describe_support(page: RunPage | SitePage, row: ScoreRow) -> str:
    """How little a score rests on."""
    with_it = format_count(row.positive_patients, "patient", "patients")
    if row.defined is not None:
        return f"{with_it} with {'the rarest of the structures' if len(page.structures) > 1 else 'the structure'}"
    if page.number:
        return format_count(row.patients, "patient", "patients")
    if page.scored_parts:
        return f"{with_it} {'with the rarest finding' if page.part_word == 'finding' else 'of the rarest class'}"
    counts = f"{format_whole(row.positives)} positive and {format_whole(row.negatives)} negative"
    positive = format_count(row.positive_patients, "positive patient", "positive patients")
    return f"{counts} {'patients' if row.noise else page.words.examples}, {positive}"


CUTS_NOTE = (
    "*AUC*: of the probability that the grade reaches a cut, grades from the cut on against those below; the mean "
    "over the cuts that can be assessed: at least 20 {examples} on either side, those above of 5 patients; if none "
    "can, over all that have both sides. {parts} *quadratic kappa*: agreement of grades beyond chance, by the squared "
    "distance. *MAE in grades*: how many grades a prediction, the median of its distribution, is off; lower is "
    "better. *balanced accuracy*: the mean over grades of the share that is recognised."
)
FINDINGS_NOTE = (
    "Each finding is scored on the {examples} where it is known. AUC, balanced accuracy and the other scores of a "
    "whole model are means over the findings that can be assessed: at least 20 {examples} with and 20 without it, "
    "those with it of 5 patients; if none can, over all that have both. {parts}"
)
CLASSES_NOTE = (
    "AUC (each class against the rest) and balanced accuracy are means over the classes that can be assessed: at "
    "least 20 {examples} of 5 patients, and 20 {examples} of other classes; if fewer than two can, over all that a "
    "hospital has. {parts}"
)
PART_NOTES = {"cut": CUTS_NOTE, "finding": FINDINGS_NOTE, "class": CLASSES_NOTE}


def _describe_parts(page: RunPage | SitePage, over: Mapping[str, Sequence[str]]) -> Text:
    """Over which classes, cuts or findings means are taken, by hospital."""
    several = len(over) > 1
    parts = join_texts(
        ((Span(site, "b") if several else "", ": " * several, ", ".join(over[site])) for site in over), "; "
    )
    return compose_text(PART_NOTES[page.part_word], examples=page.words.examples, parts=(parts, "."))


def describe_adaptation(structures: Sequence[str], field: str) -> Text:
    """What adaptation at an external site sees. field: the setting that crops images around their masks."""
    start = "Each line is a way to get a model for this purpose; a model is adapted on the images that it is scored on"
    end = "All patients are scored, or test patients alone where a line is `fine_tuned`, which trains with labels."
    if not field:
        return compose_text(f"{start}, without their {'masks' if structures else 'labels'}. {end}")
    saw = "no mask" if structures else "neither mask nor label"
    cropped = "**Images were cropped around their masks** (`{field}`); adaptation itself saw"
    return compose_text(f"{start}. {cropped} {saw}. {end}", field=field)


def describe_withdrawal(withdrawn: Withdrawn, words: Words) -> str:
    """How many studies are left out."""
    text = f"{format_count(withdrawn.studies, words.study, words.studies)} left out"
    if withdrawn.unmatched:
        names = format_count(withdrawn.unmatched, "excluded name matches", "excluded names match")
        text += f"; {names} no patient"
    return text
