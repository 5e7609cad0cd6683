"""The facts that each request must have, checked before its handler reads a patient: a later failure for a missing
one could not be told from one that a patient's data caused. Settings that only a parser knows are refused by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from federation.participant import Checkpoint
from pipelines.data.images import AnyImages, Target
from pipelines.hospital.benchmark_request import Benchmark, check_file
from pipelines.hospital.witness import Surveyed
from pipelines.loader.names import NAME
from pipelines.settings.learning import Split
from pipelines.settings.track import Tracked
from pipelines.settings.variants import Variant as Scored
from privacy.message import Message
from privacy.release.bounds import ROUNDS, RUN, shown
from privacy.release.gate import Refused

Named: TypeAlias = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Run: TypeAlias = Annotated[str, Field(pattern=f"^{RUN.pattern}$")]
Round: TypeAlias = Annotated[int, Field(ge=0, le=ROUNDS)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**31)]
Digest: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Line: TypeAlias = Annotated[str, Field(max_length=200)]
Window: TypeAlias = list[Count] | None
Settings: TypeAlias = dict[str, Any]
Asked: TypeAlias = tuple[Run, Round, Named]


class Reading(TypedDict):
    """How files become a cohort."""

    images: AnyImages
    split: Split
    seed: int
    independent: NotRequired[bool]
    target: NotRequired[Target | None]
    classes: NotRequired[list[Line]]


class Training(TypedDict):
    """A round, or the last merge."""

    algorithm: NotRequired[Settings]
    best: NotRequired[Round | None]


class Model(TypedDict):
    """Which model of a run."""

    train_run: Run
    checkpoint: Checkpoint
    best: Round | None


class Export(TypedDict):
    """A model that is handed out."""

    train_run: Run
    checkpoint: Checkpoint
    best: NotRequired[Round | None]
    recipient: NotRequired[Named]


class Scoring(Model):
    """A model to score: the site's own, or another site's with its opening."""

    label: Named
    cohort: Line
    copies: Any
    opening: NotRequired[Settings]
    window: NotRequired[Window]
    central: NotRequired[bool]
    floor: NotRequired[bool]


class Attack(Model):
    """A model that its hospital attacks."""

    cohort: Line
    membership: NotRequired[bool]
    calibration: NotRequired[None]


class Pool(TypedDict):
    """Images for the central baseline."""

    cohort: Line
    target: NotRequired[Target | None]


class Score(TypedDict):
    """How hard images are to imitate."""

    cohort: Line
    score: Any
    prior: Any
    scale: Any


class Synthesis(TypedDict):
    """Images to be imitated."""

    cohort: Line
    synthesis: Any
    scale: Any


class Sample(TypedDict):
    """Synthetic images to be shared."""

    cohort: Line
    synthesis_run: Run
    sampling: Any
    scale: Any


class Translation(TypedDict):
    """Images to be brought into a space."""

    cohort: Line
    space: Line
    translator: Any
    veto: Any
    scale: Any
    is_target: Any
    scanner: Line | None


class Augmentation(TypedDict):
    """Training images to be joined by synthetic ones."""

    cohort: Line
    augment: Any
    scale: Any
    prior: Named
    fid: NotRequired[Digest | None]


class Routing(TypedDict):
    """Models that come to an external site."""

    cohort: NotRequired[Line]
    experts: NotRequired[list[Line]]
    line: NotRequired[Line]
    scored: NotRequired[Literal["all", "test"]]


class Held(TypedDict):
    """What the hospital should still have."""

    cohort: NotRequired[Line]
    sha256: NotRequired[Line]
    page: NotRequired[Line]
    runs: NotRequired[dict[Run, Round | Literal["begun"] | None]]
    answers: NotRequired[list[Asked]]


class Method(Model):
    """A method on a page."""

    label: Named
    cohort: NotRequired[Line]
    space: NotRequired[Line]
    calibration: NotRequired[None]


class Variant(Model):
    """A method as a variant scores it."""

    label: Named
    cohort: NotRequired[Line]
    space: NotRequired[Line]
    calibration: Scored


class Compared(TypedDict):
    """Models of a run to be compared."""

    methods: list[Method]
    variants: NotRequired[list[Variant]]


class Outside(TypedDict):
    """A line of test-time routing on a page."""

    label: Named
    run: Run


class Oracle(TypedDict):
    """Lines of a run to be compared with one that has the same patients on one scanner."""

    untranslated: Named
    oracle: Named
    others: list[Named]


class Others(TypedDict):
    """Sums of the gains that other hospitals measured, by model: weighted, and of the weights."""

    hospitals: Count
    sums: dict[Named, tuple[float, float]]


class Page(TypedDict):
    """Contents of a hospital's page. pictures: False = without them, which only a simulated hospital heeds."""

    title: Line
    cohort: Line
    pictures: NotRequired[bool]
    reference: Named | None
    copies: Annotated[int, Field(ge=0, le=2000)]
    methods: list[Method]
    variants: NotRequired[list[Variant]]
    imitated: NotRequired[Line | None]
    excluded: NotRequired[Count]
    unmatched_exclusions: NotRequired[Count]
    spaces: NotRequired[list[Line]]
    target: NotRequired[Target | None]
    structures: NotRequired[list[Named]]
    window: NotRequired[Window]
    others: NotRequired[Others]
    compared: NotRequired[list[Oracle]]


class OutsidePage(Page):
    """Contents of an external site's page."""

    lines: list[Outside]
    names: list[Line]
    field: Line


class Public(TypedDict):
    """Public pictures: those of a prior, or any with their name and the digest of their values."""

    prior: NotRequired[Named]
    folder: NotRequired[Named]
    sha256: NotRequired[Digest]
    pictures: Count


class Extraction(TypedDict):
    """Features of a cohort's images."""

    cohort: Line
    model: Settings
    public: Public


QUESTIONS: Mapping[str, TypeAdapter[Any]] = {
    "survey": TypeAdapter(Surveyed),
    "holds": TypeAdapter(Held),
    "moments": TypeAdapter(Reading),
    "ingest": TypeAdapter(Reading),
    "introduce": TypeAdapter(Settings),
    "train": TypeAdapter(Training),
    "finish": TypeAdapter(Training),
    "export": TypeAdapter(Export),
    "evaluate": TypeAdapter(Scoring),
    "audit": TypeAdapter(Attack),
    "pool": TypeAdapter(Pool),
    "score": TypeAdapter(Score),
    "synthesize": TypeAdapter(Synthesis),
    "sample": TypeAdapter(Sample),
    "translate": TypeAdapter(Translation),
    "augment": TypeAdapter(Augmentation),
    "extract": TypeAdapter(Extraction),
    "route": TypeAdapter(Routing),
    "benchmark": TypeAdapter(Benchmark),
    "compare": TypeAdapter(Compared),
    "track": TypeAdapter(Tracked),
    "report": TypeAdapter(Page),
}
"""Request -> types of its facts. Others are allowed. `introduce` checks its own before it reads a patient."""
OUTSIDE: TypeAdapter[Any] = TypeAdapter(OutsidePage)
TAKE_TENSORS = {"ingest", "train", "finish", "evaluate", "translate", "augment", "extract", "route", "benchmark"}
"""Requests that may carry tensors."""
MOMENTS = frozenset({"count", "total", "squares"})


def check_question(request: str, message: Message) -> None:
    """Check that the facts are those of this request.

    Raises:
        Refused: `malformed_request`; its cause names every fact that is missing or of another type, without its value.
    """
    if message.tensors and request not in TAKE_TENSORS:
        raise Refused("malformed_request") from ValueError(f"{request} takes no tensors, found {len(message.tensors)}")
    if request == "ingest" and message.tensors and message.tensors.keys() != MOMENTS:
        raise Refused("malformed_request") from ValueError(f"ingest takes the tensors {', '.join(sorted(MOMENTS))}")
    if request == "benchmark":
        check_file(message.tensors)
    asked = OUTSIDE if request == "report" and "lines" in message.facts else QUESTIONS[request]
    try:
        asked.validate_json(json.dumps(dict(message.facts)), strict=True)
    except ValidationError as error:
        raise Refused("malformed_request") from ValueError("; ".join(_error_text(e) for e in error.errors()[:5]))


def _error_text(error: Mapping[str, Any]) -> str:
    return f"{'.'.join(shown(p) if isinstance(p, str) else str(p) for p in error['loc'])}: {error['type']}"
