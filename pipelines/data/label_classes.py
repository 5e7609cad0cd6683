"""The class that a text in a table stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pipelines.data.label_findings import STATE_NAMES, FindingNames
from pipelines.data.label_numbers import LabelRange, Meaning
from pipelines.data.study import Unusable
from privacy.settings_error import Problem

PLAIN = ("negative", "positive")
"""The classes of a task that names none; a table calls them 0 and 1."""
WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")  # as spreadsheets write whole numbers
SHOWN = 12  # class names in a message


def class_number(
    text: str,
    what: str,
    classes: tuple[str, ...] | LabelRange = (),
    values: Mapping[str, str] | None = None,
    *,
    mend: str,
) -> int:
    """The number of a class, 0 = the first; or the step of a number in its range. Several findings have
    `FindingNames.find_code`.

    Args:
        text: as the table has it. "2.0" is the same as "2", and upper case the same as lower case where classes are
            compared by name.
        what: the column or line that has this text, for messages.
        classes: names of the classes in their order, () = `PLAIN`, which a table calls 0 and 1; or the range of
            numbers.
        values: text -> name of a class; every text must then be in it. None or empty = the text is the class's name.
        mend: what to do about a wrong text, for messages.

    Raises:
        Unusable: `no_label`: there is no text; `bad_label`: it stands for no class; or as `LabelRange.find_step`.
    """
    if isinstance(classes, LabelRange):
        return classes.find_step(text, what, mend=mend)
    short = shorten_number(text)
    if values:
        name = values.get(text, values.get(short))
        number = {name: number for number, name in enumerate(classes or PLAIN)}.get(name or "")
        allowed: Sequence[str] = tuple(values)
    else:
        allowed = tuple(classes) or ("0", "1")
        number = {name: number for number, name in enumerate(allowed)}.get(short.casefold())
    if number is None:
        allowed_text = "0 or 1" if not classes and not values else f"one of {_format_names(allowed)}"
        raise Unusable(
            "bad_label" if text else "no_label",
            f"{what} {f'has {text!r}' if text else 'has no label'}; it must be {allowed_text}. {mend}",
        )
    return number


def shorten_number(text: str) -> str:
    """The text without the decimal point of a whole number."""
    return match[1] if (match := WHOLE.fullmatch(text)) else text


def value_problems(values: Mapping[str, str], classes: Meaning, *where: str) -> list[Problem]:
    """Problems with `values` of a hospital: a name that is no class of the task, or any where labels are numbers; of
    findings other names than no, yes and unknown.
    """
    if isinstance(classes, FindingNames):
        wrong = sorted({name for name in values.values() if name not in STATE_NAMES})
        text = f"{', '.join(map(repr, wrong))} say nothing of a finding; say {', '.join(STATE_NAMES)}"
        return [Problem((*where, "values"), text)] if wrong else []
    if isinstance(classes, LabelRange):
        text = "they say which class a text is, and the task learns a number; remove them"
        return [Problem((*where, "values"), text)] if values else []
    known = tuple(classes) or PLAIN
    wrong = sorted({name for name in values.values() if name not in known})
    text = f"{', '.join(map(repr, wrong))} are no classes of the task; these are {_format_names(known)}"
    return [Problem((*where, "values"), text)] if wrong else []


def _format_names(names: Sequence[str]) -> str:
    """The first `SHOWN` names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
