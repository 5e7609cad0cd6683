"""Why a run failed: one exception, with the exit codes of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pipelines.coordinator.failures import code_of
from pipelines.runs.exits import Exit
from privacy.pickled import reduce_error


class RunFailed(RuntimeError):
    """A run ended early. code: as the command's exit code (docs/reference/exit-codes.md). details: what hospitals wrote
    into their own logs about it; they may name patients. The text ends with what to do; finished stages are kept.
    """

    def __init__(self, words: str, code: Exit, details: Sequence[str] = ()) -> None:
        super().__init__("\n".join([words, *details]))
        self.code, self.details = code, tuple(details)

    __reduce__ = reduce_error


def build_run_failed(error: Exception, logs: Iterable[Path]) -> RunFailed:
    """The exception for whatever ended a run. logs: of the hospitals."""
    code = code_of(error)
    refusals = _last_refusals(logs) if code in (Exit.DATA, Exit.SITE) else []
    return RunFailed(str(error) or type(error).__name__, code, refusals)


def _last_refusals(logs: Iterable[Path]) -> list[str]:
    """The last line of each log, if it tells of a refusal or failure."""
    refusals = []
    for path in logs:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        last = next((line for line in reversed(lines) if "refused with code" in line or "failed" in line), None)
        if last is not None:
            refusals.append(f"{path.parent.name}: {last.partition(' ')[2]}; what happened stands in {path}")
    return refusals
