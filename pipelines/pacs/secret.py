"""Passwords and tokens: in a file that only its owner may read, or in the environment; never in settings or messages.

No message shows what stands where a path or a name was expected: it may be the secret itself, at the wrong place.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from privacy.settings_error import Problem, SettingsError, refuse

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LARGEST = 65536  # bytes of a secret's file
PLAIN = (
    "a secret must not stand in settings, which are copied, sent and shown; "
    "write it into a file that only you may read and give {file: PATH}, or {env: NAME} of a variable that holds it"
)


@dataclass(frozen=True, kw_only=True)
class Secret:
    """Where a secret is. file: holds nothing else, and others may not read it. env: the name of a variable."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    file: str | None = field(default=None, repr=False)
    env: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.file is None) == (self.env is None):
            refuse([Problem((), "give one of {file: PATH} and {env: NAME}")])
        if self.env is not None and not NAME.fullmatch(self.env):
            refuse([Problem(("env",), "is no name of a variable; letters, digits and _ only")])

    def read(self) -> str:
        """The secret, without the line's end.

        Raises:
            SettingsError: it is not there, is open to others, is empty, or is no text of one line.
        """
        text = self._text().removesuffix("\n").removesuffix("\r")
        if not text or not text.isprintable():
            refuse([Problem(self._where(), "is empty or has control characters; one line of text is needed")])
        return text

    def problems(self) -> list[Problem]:
        """Why it cannot be read; none if it can."""
        try:
            self.read()
        except SettingsError as error:
            return list(error.problems)
        return []

    def _where(self) -> tuple[str]:
        return ("env",) if self.file is None else ("file",)

    def _text(self) -> str:
        if self.file is None:
            value = os.environ.get(self.env or "")
            if value is None:
                raise SettingsError([Problem(("env",), "no such variable is set; set it where the command starts")])
            return value
        try:
            with Path(self.file).open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise SettingsError([Problem(("file",), "is no regular file; give one that holds the secret")])
                if status.st_mode & 0o077:
                    raise SettingsError([Problem(("file",), "others may read or change it; chmod 600, or 400")])
                return file.read(LARGEST).decode()
        except UnicodeDecodeError:
            raise SettingsError([Problem(("file",), "is no text; UTF-8 is expected")]) from None
        except OSError as error:
            text = f"cannot be read ({error.strerror}); give a file that holds the secret"
            raise SettingsError([Problem(("file",), text)]) from None


def not_plain_text(value: object) -> object:
    """The value, for pydantic to read on. Raises: SettingsError: it is text, perhaps the secret; it is not shown."""
    if isinstance(value, str | int | float | list) and not isinstance(value, bool):
        refuse([Problem((), PLAIN)])
    return value
