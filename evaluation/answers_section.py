"""The first screen of a page as sections: which model to use, what left, and what needs a person's eye."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evaluation.answers import Answers
from evaluation.choice import Choice
from evaluation.leaving import Departure
from evaluation.notices import Notice
from evaluation.page import Block, Fact, Facts, Fold, Items, Paragraph, Section, SideBySide, Span, Text, compose_text
from evaluation.wording import READABLE, format_count, format_list

NOTHING_TO_LOOK_AT = (
    "Nothing was found: every reply came, nothing was vetoed or quarantined, and no attack that was run succeeded."
)


def build_answers(answers: Answers, whose: str, *, is_run: bool) -> SideBySide:
    """The three answers. whose: "each hospital" or "this hospital". is_run: whether they are of several hospitals."""
    left: list[Block] = [Paragraph(_describe_departure(departure, is_run=is_run)) for departure in answers.left]
    left = left or [Paragraph("Nothing left.")]
    if answers.unit:
        unit = compose_text("{unit} [Privacy statement](#privacy).", unit=answers.unit)
        left.append(Paragraph(unit, "note"))
    use = _list_choices(answers.use, whose, is_run=is_run)
    if answers.sure:
        use.append(Fold("How it was chosen", [Paragraph(text, "note") for text in answers.sure], is_part=False))
    return SideBySide(
        [
            Section(f"1. Which model should {whose} use?", use, "use", "In short", "wide"),
            Section("2. What left, and at what privacy loss ε?", left, "went", width="half"),
            Section("3. What needs a person's eye?", _list_notices(answers.look), "look", width="half"),
        ],
        "answers",
    )


def build_banners(answers: Answers) -> list[Block]:
    """What stands above the answers, if anything is known of it."""
    named = (("At home and together.", answers.at_home), ("Harmonization.", answers.harmonized))
    return [Paragraph((Span(name, "strong"), " ", " ".join(texts)), "banner") for name, texts in named if texts]


def _list_choices(choices: Sequence[Choice], whose: str, *, is_run: bool) -> list[Block]:
    """The choices, or how many hospitals have each where there are many."""
    facts = [_state_choice(choice, is_run=is_run) for choice in choices]
    listed = Facts(facts or [Fact(f"No model was made for {whose} in this run.")], "What it rests on")
    if len(choices) <= READABLE:
        return [listed]
    counts = sorted(Counter(choice.named for choice in choices).items())
    summary = "; ".join(f"{named}: {format_count(times, 'hospital', 'hospitals')}" for named, times in counts)
    return [Paragraph(f"{summary}.", "lead"), Fold("Each hospital", [listed], is_part=False)]


def _state_choice(choice: Choice, *, is_run: bool) -> Fact:
    """A choice, with what it rests on."""
    site: Text = (Span(choice.site, "b"), " ") if is_run else ""
    lead = choice.said[0] if choice.said else ""
    standing = [text for text in choice.standing if text != lead]
    rest: Text = " ".join(text for text in choice.said[1:] if text not in standing)
    if choice.file:
        rest = (rest, " ", Span(choice.file, "code"))
    return Fact((site, Span(choice.named, "strong")), lead, rest, " ".join(standing))


def _describe_departure(departure: Departure, *, is_run: bool) -> Text:
    """What left a group of hospitals."""
    who: Text = (Span(format_list(departure.sites), "strong"), ": ") if is_run else ""
    return (who, Span(f"ε = {departure.epsilon}", "lead"), ". ", " ".join(departure.said))


def _list_notices(notices: Sequence[Notice]) -> list[Block]:
    """What a person should check."""
    if not notices:
        return [Paragraph(NOTHING_TO_LOOK_AT)]
    first, rest = ([_state_notice(n) for n in part] for part in (notices[:READABLE], notices[READABLE:]))
    blocks: list[Block] = [Items(first, "plain look")]
    if rest:
        title = format_count(len(rest), "further point", "further points")
        blocks.append(Fold(title, [Items(rest, "plain look")], is_part=False))
    return blocks


def _state_notice(notice: Notice) -> Text:
    """A notice, with where there is more."""
    more: Text = (" ", Span("More", href=f"#{notice.link}")) if notice.link else ""
    return (Span(f"{notice.what}.", "b"), f" {notice.text}", more)
