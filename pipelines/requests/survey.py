"""How many files a hospital has, whether they changed, and what its policy answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pipelines.requests.fields import Count, Digest, KeyedDigest, Line
from pipelines.requests.request import Repeat, Request
from pipelines.runs.witness import read_last_answers
from privacy.release.form import ABSENT, Absent, Of


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A run's first question. witness: the sha256 of the last answer that the coordinator got from this hospital."""

    witness: Digest | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """digest: keyed, of names, sizes and times of the files. files, bytes: left out where privacy is promised, since
    both change with a patient. The rest is the hospital's policy.
    """

    digest: KeyedDigest
    files: Count | Absent = ABSENT
    bytes: Annotated[int, Of.COUNT] | Absent = ABSENT
    requests: Annotated[list[Line], Of.NAME]
    algorithms: Annotated[list[Line] | None, Of.NAME]
    private: Annotated[bool, Of.NAME]
    plugins: Annotated[dict[Line, Line], Of.NAME] | Absent = ABSENT
    recipients: Annotated[list[Line], Of.NAME] | Absent = ABSENT


SURVEY: Request[Survey, Surveyed] = Request(
    name="survey",
    question=Survey,
    replies=(Surveyed,),
    says="number and size of files; a keyed digest of names, sizes and times; what this policy answers",
    repeat=Repeat.ANEW,
)


def build_surveys(root: Path, sites: Iterable[str]) -> dict[str, Survey]:
    """A run's first question to each site. root: the run's folder."""
    last_answers = read_last_answers(root)
    return {site: Survey(witness=last_answers.get(site, ABSENT)) for site in sites}
