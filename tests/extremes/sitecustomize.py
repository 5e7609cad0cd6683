"""The operating system's randomness at its worst, where `privacy.dp.entropy` asks for it: does a test hang on it?

    make test-noise NOISE=high

Python imports this file when it starts, if its folder is on PYTHONPATH; it does nothing unless NOISE names a draw. Of
Gaussian noise every number is then 8.6 standard deviations above (`high`) or below (`low`) 0, which chance gives once
in 1e17, both in turns (`turns`), or 0 (`none`). Of patients nobody (`nobody`) or everybody (`everybody`) is in every
sample, and of sets each gets the last or the first. A test that passes with all six hardly hangs on noise; one
that does not says by `@pytest.mark.chance` how likely it is to fail. Files that ask for names and seeds get what they
always get; hospitals' keys are those of `fixed_keys.py`.
"""

from __future__ import annotations

import os
import sys

import fixed_keys

KINDS = ("high", "low", "turns", "none", "nobody", "everybody")
KIND = os.environ.get("NOISE", "")
ENTROPY, AUDIT = "privacy.dp.entropy", "privacy.attacks.audit"
LEAST, HALF, MOST = ((number % 2**64).to_bytes(8, "little") for number in (-(2**63), 0, 2**63 - 1))
"""Eight bytes of which `draw_uniform` makes a number right above 0, 1/2, and right below 1."""

_urandom = os.urandom


def urandom(size: int, /) -> bytes:
    """As `os.urandom`, but for the noise and the samples of `privacy.dp`."""
    caller = sys._getframe(1)
    asks = (
        caller.f_back
        if caller.f_globals.get("__name__") == ENTROPY and caller.f_code.co_name == "draw_uniform"
        else None
    )
    if asks is None:
        return _urandom(size)
    if asks.f_code.co_name == "draw_gaussians":
        drawn = b"".join(gaussian(number) for number in asks.f_locals["sizes"])
    elif asks.f_back is not None and asks.f_back.f_globals.get("__name__") == AUDIT:
        drawn = b""  # of 100 canaries or more nobody is none or all: 2^-100
    else:
        drawn = {"nobody": MOST, "everybody": LEAST}.get(KIND, b"") * (size // 8)
    return drawn if len(drawn) == size else _urandom(size)


def gaussian(number: int) -> bytes:
    """The words for so many Gaussian numbers, of Box and Muller: two radii and two angles each; empty = real ones."""
    turns = ((LEAST + HALF) * number)[: 8 * number]
    angles = {"high": LEAST * number, "low": HALF * number, "turns": turns, "none": LEAST * number}.get(KIND, b"")
    radii = (MOST if KIND == "none" else LEAST) * (2 * number)
    return radii + 2 * angles if angles else b""


if KIND:
    if KIND not in KINDS:
        raise SystemExit(f"NOISE must be one of {', '.join(KINDS)}, found {KIND!r}")
    os.urandom = urandom
fixed_keys.fix_keys()
