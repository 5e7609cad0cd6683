"""One answer of a query, from whichever protocol: an entry, or the reason why it is none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime

from pipelines.pacs.archive import Entry, Odd, Query, is_uid

LONGEST_TEXT = 1024  # characters; DICOM's own limit is 64
ESCAPED = re.compile(r"[^A-Za-z0-9_.~*?-]")
RETURNED = (
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "Modality",
    "SeriesDescription",
    "StudyDate",
    "AccessionNumber",
    "NumberOfSeriesRelatedInstances",
)


def keys_of(query: Query) -> dict[str, str]:
    """What is matched, DICOM keyword -> text, with a range of days as PS3.4 C.2.2.2.5 writes it."""
    keys = dict(query.more)
    if query.modality:
        keys["Modality"] = query.modality
    if query.description:
        keys["SeriesDescription"] = query.description
    since, until = (day.strftime("%Y%m%d") if day else "" for day in (query.since, query.until))
    if since or until:
        keys["StudyDate"] = since if since == until else f"{since}-{until}"
    return keys


def widen_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """The same with ? for each character that an address escapes, as some archives do not undo that. It matches more:
    see `matches`.
    """
    return {keyword: ESCAPED.sub("?", text) for keyword, text in keys.items()}


def is_match(keys: Mapping[str, str], texts: Mapping[str, str]) -> bool:
    """Whether an answer matches the keys in which `widened` changed something, * and ? being wildcards, in any case.

    What the answer does not say matches.
    """
    for keyword in (keyword for keyword, text in keys.items() if ESCAPED.search(text)):
        pattern = re.escape(keys[keyword].strip()).replace(r"\*", ".*").replace(r"\?", ".")
        if texts.get(keyword) and not re.fullmatch(pattern, texts[keyword].strip(), re.IGNORECASE | re.DOTALL):
            return False
    return True


def parse_entry(texts: Mapping[str, str], query: Query, number: int) -> Entry | Odd:
    """An answer as an entry. texts: keyword -> text, as in `RETURNED`. number: of the answer, from 1.

    Odd: `bad_uid`, `long_text`, or `not_asked_for` where modality or day are not those that were asked for. The odd
    text itself is not repeated: it may be a patient's.
    """
    what = f"answer {number}"
    for keyword in ("StudyInstanceUID", "SeriesInstanceUID"):
        if not is_uid(texts.get(keyword, "")):
            value_text = f"{len(texts[keyword])} characters that are no UID" if texts.get(keyword) else "nothing"
            return Odd(what, "bad_uid", f"{keyword}: found {value_text}; it cannot be asked for")
    series = texts["SeriesInstanceUID"]
    for keyword in RETURNED:
        if len(texts.get(keyword, "")) > LONGEST_TEXT:
            return Odd(series, "long_text", f"{keyword} has more than {LONGEST_TEXT} characters")
    modality, day = texts.get("Modality", ""), day_of(texts.get("StudyDate", ""))
    if query.modality and modality and modality.upper() != query.modality.upper():
        return Odd(series, "not_asked_for", f"asked for {query.modality}, got another modality; it is not used")
    if day and ((query.since and day < query.since) or (query.until and day > query.until)):
        return Odd(series, "not_asked_for", "its day is not among those asked for; it is not used")
    count = texts.get("NumberOfSeriesRelatedInstances", "").strip()
    return Entry(
        study=texts["StudyInstanceUID"],
        series=series,
        modality=modality,
        description=texts.get("SeriesDescription", ""),
        day=day,
        accession=texts.get("AccessionNumber", ""),
        instances=int(count) if count.isascii() and count.isdigit() and len(count) < 10 else None,
    )


def first_time(found_studies: Entry | Odd, studies: dict[str, str]) -> Iterator[Entry | Odd]:
    """An answer, if its series did not come before. studies: series -> study of those that came.

    Odd: `two_studies`, where it came in another study: a copy, or a merge of patients that went wrong.
    """
    if isinstance(found_studies, Odd):
        yield found_studies
    elif found_studies.series not in studies:
        studies[found_studies.series] = found_studies.study
        yield found_studies
    elif studies[found_studies.series] != found_studies.study:
        problem = "the archive has it in two studies, of which one is used; correct it there"
        yield Odd(found_studies.series, "two_studies", problem)


def texts_of(answer: object, keys: Iterable[str]) -> dict[str, str]:
    """Keyword -> text of an answer in DICOM's JSON model (PS3.18, F.2), for `RETURNED` and `keys`.

    Values that are neither text nor a whole number are as if missing.
    """
    from pydicom.tag import Tag  # slow to import

    texts: dict[str, str] = {}
    for keyword in (*RETURNED, *keys):
        element = answer.get(f"{int(Tag(keyword)):08X}") if isinstance(answer, Mapping) else None
        values = element.get("Value") if isinstance(element, Mapping) else None
        value = values[0] if isinstance(values, list) and values else None
        value = value.get("Alphabetic") if isinstance(value, Mapping) else value  # of a person's name
        if isinstance(value, str | int) and not isinstance(value, bool):
            texts[keyword] = str(value)[: LONGEST_TEXT + 1]
    return texts


def day_of(text: str) -> date | None:
    """A DICOM date; None if it is missing or none."""
    try:
        return datetime.strptime(text.strip(), "%Y%m%d").date()
    except ValueError:
        return None
