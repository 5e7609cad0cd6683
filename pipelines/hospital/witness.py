"""A hospital refuses to go on with a ledger in which the line of an answer is missing that left it."""

from __future__ import annotations

from pipelines.hospital.hospital import Hospital
from pipelines.runs.witness import describe_new_beginning
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.witness import OLDER, has_left


def check_witness(hospital: Hospital, seen: str | None) -> None:
    """Check that the ledger has the answer of which the coordinator is a witness. seen: its sha256.

    Raises:
        Refused: `older_ledger`: it was put back from an older copy, or begun anew.
    """
    if seen is not None and not has_left(ledgers.read_lines(hospital.ledger), seen):
        raise Refused(OLDER) from ValueError(
            f"the coordinator holds an answer of ours, sha256 {seen}, and {hospital.ledger} has no line for it: it was "
            f"put back from an older copy, or begun anew. Put the newest copy back. If there is none: "
            f"python -m pipelines.ledger restored {hospital.ledger} --lost {seen} --epsilon E, with E what the lost "
            f"lines may have cost, or unknown. {_describe_remedy(hospital)}"
        )


def _describe_remedy(hospital: Hospital) -> str:
    if not hospital.simulation:
        return "Who does not know what was lost asks the data protection officer, and goes on with nothing before that"
    return f"Or, {describe_new_beginning(hospital.root.parent.parent)}"
