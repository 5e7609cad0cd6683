"""Whether this program can read a file: every file that is kept has a format, a number that only grows.

A file without one has format 1. A program that writes what older ones cannot read raises the number.
"""

from __future__ import annotations

import json


class LaterVersion(ValueError):
    """A file of a program that is newer than this one. It is not damaged, and nothing may be made in its place."""


def check_format(file_format: object, newest: int, what: str) -> None:
    """Check that this program reads a format. found: as the file says it. what: the file, in words.

    Raises:
        LaterVersion: it is newer than `newest`, or no program of ours wrote it so until today.
    """
    if file_format is None:
        return
    if type(file_format) is not int or file_format < 1:
        shown_format = json.dumps(file_format, default=str)[:40]
        raise LaterVersion(
            f"{what} has the format {shown_format}, and formats are whole numbers, 1 to {newest} today: "
            "a later version made "
            "it, or somebody changed it; upgrade this program, or take the file from a backup"
        )
    if file_format > newest:
        raise LaterVersion(f"{what} was made by {describe_later_version(file_format, newest)}")


def describe_later_version(file_format: int, newest: int) -> str:
    """The words for a file of a newer format."""
    return f"a later version (format {file_format}; this program reads up to {newest}): upgrade this program"
