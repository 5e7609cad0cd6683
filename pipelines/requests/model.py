"""Which model of a run."""

from __future__ import annotations

from dataclasses import dataclass

from federation.participant import Checkpoint
from pipelines.requests.fields import Round, Run


@dataclass(frozen=True, kw_only=True)
class Model:
    """best: the globally best round; None = there was none."""

    train_run: Run
    checkpoint: Checkpoint
    best: Round | None
