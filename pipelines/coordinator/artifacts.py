"""Stages' results: their file names, and the replies of hospitals in them, for the stages and pages that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pipelines.requests.ingest import INGEST, Counted, CountedOnce
from pipelines.requests.request import Request
from pipelines.requests.writing import read_reply, to_facts
from privacy.message import Message
from privacy.release.form import read_form

T = TypeVar("T")
Counts: TypeAlias = Counted | CountedOnce
CENTRAL = "central"
"""The site, in a simulation, that holds the pooled images of all hospitals."""
SITES = "sites.json"
SCORES = "scores.json"
SYNTHESIS = "synthesis.json"
SHARED = "shared.safetensors"
OUTSIDE_FOLDER = "outside"
"""Folder of the stage `route` with the external sites' counts of their cohorts."""
INDEX = "index.json"
AGREED = "agreed.json"
"""Site -> null, or the code with which it did not let its figures go to tracking tools."""
PAGE, ANSWERS = "report.html", "answers.json"


def target_of(artifact: Path) -> str:
    """The hospital whose images are imitated, from the artifact of the stage `score`."""
    return str(json.loads((artifact / SCORES).read_text())["target"])


def write_replies(path: Path, replies: Mapping[str, Any]) -> None:
    """Write the facts of replies, by site, as JSON."""
    path.write_text(json.dumps({site: to_facts(reply) for site, reply in replies.items()}, indent=1, sort_keys=True))


def read_records(form: type[T], path: Path) -> dict[str, T]:
    """The part of written replies that this form has, by site.

    Raises:
        ValueError: the file is damaged.
    """
    return {site: read_form(form, Message({}, facts)) for site, facts in json.loads(path.read_text()).items()}


def read_replies(request: Request[Any, T], path: Path) -> dict[str, T]:
    """Written replies to a request, by site. Raises: ValueError: the file is damaged."""
    return {site: read_reply(request, Message({}, facts)) for site, facts in json.loads(path.read_text()).items()}


def read_counts(ingested: Path) -> dict[str, Counts]:
    """What hospitals counted, by site, from an artifact of the stage `ingest`. Raises: ValueError: it is damaged."""
    return read_replies(INGEST, ingested / SITES)
