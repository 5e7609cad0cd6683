"""Checks before a hospital that promises privacy answers, so that nothing leaves that its budget has not paid."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.hospital.hospital import Hospital
from pipelines.runs.listing import list_paths
from privacy.dp.events import Event
from privacy.message import Call, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused, find_unaffordable, is_paid_reply
from privacy.release.refusals import count_patient_codes


def check_may_answer(hospital: Hospital) -> None:
    """Check that the hospital may answer at all.

    Raises:
        Refused: `lost_ledger`: there was work, but the ledger with its costs is missing; restore it from its backup.
        `too_many_failures`: so many failures were reported that they could reveal a patient; a person must look at
        them, and raise `max_failures`.
    """
    policy = hospital.policy
    if not policy.promises:
        return
    if not hospital.ledger.exists():
        if list_paths(hospital.root, "conversations/*/*/*"):
            raise Refused("lost_ledger") from FileNotFoundError(f"{hospital.ledger}: restore it from its backup")
        return
    if count_patient_codes(ledgers.read_lines(hospital.ledger)) > policy.max_failures:
        raise Refused("too_many_failures")


def check_affordable(hospital: Hospital, events: Sequence[Event], call: Call) -> None:
    """Check before the work that the policy allows the events of a reply.

    An answer whose files are made again is paid already, and nothing new leaves.

    Raises:
        Refused: the code of `privacy.release.gate.find_unaffordable`.
    """
    if hospital.conversation(call.run).has(f"{call.request}-{call.round}"):
        return
    if refusal := find_unaffordable(hospital.policy, hospital.ledger, [hospital.counts, *events], call.run):
        raise Refused(refusal.code) from ValueError(refusal.why)


def check_paid(hospital: Hospital, memory: Message) -> None:
    """Check that the ledger has a line for the reply whose memory this is; that reply may have been refused or lost.

    Raises:
        Refused: `unpaid_memory`.
    """
    commit = memory.facts.get("commit")
    if not memory.facts or (commit is None and not hospital.policy.promises):
        return  # no memory; or one of an older version, without commits, at a hospital that promises nothing
    if not is_paid_reply(tuple(ledgers.read_lines(hospital.ledger)), commit):
        raise Refused("unpaid_memory")
