"""An export that leaves the hospital is a release: the policy must allow it, and the ledger has it before that.

Without `--release` nothing leaves: files are written on this machine for the hospital's own use, as `predict` writes
its tables, and say so. With it each file has its line in the ledger: the request `export`, the recipient `outside`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pipelines.loader.document import ConfigError, parse_document, render
from pipelines.loader.validation import validate_settings
from pipelines.models.file import Ready
from pipelines.settings.load import POLICY
from privacy.dp.events import NON_PRIVATE, NOTHING, Event, describe_event
from privacy.message import Call
from privacy.release.gate import Refused, release_reply
from privacy.release.policy import OUTSIDE, Policy

LEDGER = "ledger.jsonl"
STAYS = (
    "This file stays at the hospital. It was exported for its own use, and no ledger knows it as handed out; to hand "
    "it on, export it again with --release."
)
WHY = {
    "policy_request": "its policy does not answer `export`; add it to requests",
    "policy_recipient": f"its policy names no recipient `{OUTSIDE}`; say recipients: [coordinator, {OUTSIDE}]",
    "policy_bytes": "a file is larger than max_bytes of its policy",
    "budget": "its budget does not allow a model that was shaped by patients without noise",
    "policy_privacy": "its policy requires privacy, and this model was shaped by patients without noise",
}
"""Code of a refusal -> what the policy says."""


def released_words(folder: Path, now: str) -> str:
    """What a released file says of itself."""
    return f"Released by the hospital to others on {now[:10]}; each file has its line in the hospital's ledger."


def iso_time() -> str:
    """The time, ISO, of a ledger line."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def event_of(ready: Ready) -> Event:
    """What handing out a model tells of patients, besides what is in the ledger: nothing new if all that shaped it was
    charged when it was trained; otherwise there is no bound.
    """
    fitted = ready.centring is not None or ready.origin.calibration is not None
    has_fitted_values = ready.scale is not None or ready.axes is not None
    return NON_PRIVATE if ready.origin.privacy is None or fitted or has_fitted_values else NOTHING


def policy_of(folder: Path) -> Policy:
    """The policy of a hospital, from `policy.yaml` beside its ledger.

    Raises:
        ValueError: it has no ledger or no policy there, or the policy is wrong; all problems.
        OSError: they cannot be read.
    """
    missing = [name for name in (LEDGER, POLICY) if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"--release {folder}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there; give the "
            "hospital's own folder, with its ledger and the policy that says who may get models"
        )
    try:
        return validate_settings(
            parse_document((folder / POLICY).read_text(encoding="utf-8"), environment=os.environ), Policy
        )
    except (ConfigError, UnicodeDecodeError) as error:
        words = render(error, str(folder / POLICY)) if isinstance(error, ConfigError) else str(error)
        raise ValueError(words) from error


def check_allowed(policy: Policy) -> None:
    """Check before the work whether the policy hands out models. Raises: ValueError: all that it does not allow."""
    wrong = [] if policy.allows("export") else [WHY["policy_request"]]
    wrong += [] if OUTSIDE in policy.recipients else [WHY["policy_recipient"]]
    if wrong:
        raise ValueError(f"--release: the hospital does not hand out models: {'; '.join(wrong)}")


def book_files(ready: Ready, files: Mapping[str, bytes], folder: Path, policy: Policy, now: str) -> None:
    """Write a ledger line for each file that leaves, before it is written.

    Raises:
        ValueError: the policy refuses; the refusal is in the ledger too.
        Damaged: the ledger was changed.
        OSError: the disk.
    """
    call = Call(ready.origin.run or "export/file", 0, "export", {})
    for name, data in files.items():
        try:
            release_reply(
                data,
                describe_event(event_of(ready)),
                forms=None,
                call=call,
                policy=policy,
                ledger=folder / LEDGER,
                recipient=OUTSIDE,
                now=now,
                replay=True,  # the same bytes may have left before, and cost nothing again
            )
        except Refused as refused:
            why = WHY.get(refused.code, f"code {refused.code}")
            raise ValueError(f"--release {name}: refused, {why}; nothing was written") from refused
