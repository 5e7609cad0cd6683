"""Why one study cannot be used: raised inside a reader, caught at its door, reported as `Rejected`."""

from __future__ import annotations


class Unusable(ValueError):
    """One study's data are not fit for use; never a reason to end a run.

    reason: a short code, counted and sent as a number. detail: a sentence with what was found, what is allowed and
    what to do; it may quote a header, so it stays at the site.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
