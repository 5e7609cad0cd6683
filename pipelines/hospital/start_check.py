"""What a coordinator may say of the weights with which networks begin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from pipelines.requests.extract import Public
from pipelines.requests.fields import Digest
from privacy.message import Json, as_mapping


class Start(TypedDict):
    """Weights with which networks begin, and the public pictures on which they were trained."""

    public: Public
    sha256: Digest


class Brought(TypedDict):
    """What is said of weights that somebody brought."""

    public: bool
    head: Literal["kept", "fresh"]


class StartOfFile(TypedDict):
    """Weights of a file with which networks begin, by its digest."""

    weights: Brought
    sha256: Digest


def check_start(opening: Mapping[str, Json]) -> None:
    """Check what the opening of a training says of its start. Raises: ValueError: it is malformed."""
    if "start" in opening:
        kind = StartOfFile if "weights" in as_mapping(opening["start"]) else Start
        TypeAdapter[object](kind).validate_json(json.dumps(opening["start"]), strict=True)
