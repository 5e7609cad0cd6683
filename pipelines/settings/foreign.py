"""Problems that report code of an installed package, or of the user, that fails while settings are checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from federation.origins import list_origins
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem, SettingsError


def guard_check(check: Callable[[RunSettings], Iterable[Problem]], run: RunSettings) -> Iterator[Problem]:
    """The problems that a check finds; if it fails and foreign code takes part, a problem that says so.

    Raises:
        Exception: it fails, and no foreign code takes part.
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
    """The error, its place, and the foreign code that took part; None if no foreign code did."""
    if not (foreign_origins := list_origins(*settings)):
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    who = "; ".join(f"{origin.what} of {origin.source}" for origin in foreign_origins)
    what = f"{type(error).__name__}: {error}, at {Path(last.filename).name} line {last.lineno}"
    return f"cannot be checked ({what}), and code that is not ours takes part: {who}; ask who made it, or name another"
