"""The error of settings that cannot be used: every problem by itself, so that each is shown at its own line."""

from __future__ import annotations

from collections.abc import Sequence


class SettingsError(ValueError):
    """Settings that cannot be used. problems: one sentence each; one that begins with a field's name (`mu must be >= 0,
    found -1`, or `mu: ...`) is shown at that field's line.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def problems_of(error: Exception) -> tuple[str, ...]:
    """The problems that an error tells, one sentence each."""
    return error.problems if isinstance(error, SettingsError) else (str(error),)
