"""The hospital's secret key, from which pseudonyms and UIDs are derived, and the de-identification profile."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from rich.console import Console

from pipelines.batch.confirmations import read_confirmed_images
from pipelines.batch.loop import print_text
from privacy.deidentify.dicom_image import Profile
from privacy.deidentify.layouts import Layout
from privacy.durable import write_once

KEY_BYTES = 32
KEY_VALUES = 16  # different bytes; 32 random bytes have fewer with probability 10**-16


def read_key(path: Path, console: Console) -> bytes:
    """Read the secret key; if there is no file, make a new one that only its owner can read.

    Raises:
        ValueError: it is not 32 random bytes, or others may read it.
        OSError: it cannot be read or made.
    """
    try:
        write_once(path, secrets.token_bytes(KEY_BYTES))
    except FileExistsError:
        pass
    else:
        print_text(
            console,
            "A new key was made. Back it up where only the hospital can read it: without it new files cannot be joined "
            "to these, and with it every pseudonym can be traced.",
        )
    key = path.read_bytes()
    if path.stat().st_mode & 0o077:
        raise ValueError("--key: others may read the file; run chmod 600 on it first")
    if len(key) != KEY_BYTES or len(set(key)) < KEY_VALUES:
        raise ValueError(
            f"--key: must be {KEY_BYTES} bytes of chance, with at least {KEY_VALUES} different values, found "
            f"{len(key)} with {len(set(key))}; give the right file, or a new name, and one is made"
        )
    return key


def build_profile(options: argparse.Namespace, layouts: tuple[Layout, ...]) -> Profile:
    """The profile of de-identification from the options and from the images confirmed so far.

    Raises:
        ValueError, OSError: the record of confirmations is damaged or cannot be read.
    """
    return Profile(
        blank=layouts,
        confirmed=read_confirmed_images(Path(options.key)) if layouts else frozenset(),
        keep_device=options.keep_device,
        keep_characteristics=options.keep_characteristics,
        keep_times=options.keep_times,
    )
