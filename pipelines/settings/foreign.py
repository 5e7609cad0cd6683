"""What is told when code of a package, or a class of one's own, fails while settings are checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from federation.origins import list_origins
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem, SettingsError


def guard_check(check: Callable[[RunSettings], Iterable[Problem]], run: RunSettings) -> Iterator[Problem]:
    """The problems that a check finds; where it fails and code that is not ours takes part, that.

    Raises:
        Exception: it fails, and all code is ours.
    """
    try:
        yield from check(run)
    except SettingsError as error:
        yield from error.problems
    except Exception as error:
        text = describe_foreign_failure(error, run.train, run.model, run.harmonize, run.augment, run.route, run.sites)
        if text is None:
            raise
        yield Problem((), text)


def describe_foreign_failure(error: Exception, *settings: object) -> str | None:
    """What failed where, and whose code took part; None if all code is ours."""
    if not (theirs := list_origins(*settings)):
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    who = "; ".join(f"{origin.what} of {origin.source}" for origin in theirs)
    what = f"{type(error).__name__}: {error}, at {Path(last.filename).name} line {last.lineno}"
    return f"cannot be checked ({what}), and code that is not ours takes part: {who}; ask who made it, or name another"
