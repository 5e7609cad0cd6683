"""Whether figures of this hospital that the coordinator holds may be copied to tracking tools.

Nothing is computed and no patient is looked at: the figures left before, and were booked then. What is new is who sees
them. The policy decides by `requests` (not at all) and `recipients`: a tracking server is `tracking`, a further
recipient that must be named; a file on the coordinator's own disk is the coordinator. The gate books the answer.
"""

from __future__ import annotations

from pipelines.hospital.hospital import Context, Done, Hospital
from pipelines.hospital.training import RECIPIENT
from pipelines.requests.track import Agreed, Track
from pipelines.requests.writing import to_facts
from privacy.dp.events import NOTHING, describe_event
from privacy.message import Message
from privacy.release.gate import Refused
from privacy.release.policy import COORDINATOR, TRACKING


def agree_to_tracking(hospital: Hospital, context: Context[Track]) -> Done[Agreed]:
    """Agree, or refuse.

    Raises:
        Refused: `policy_recipient`: the policy names no recipient `tracking`.
    """
    question = context.question
    recipient = TRACKING if question.server else COORDINATOR
    if recipient not in hospital.policy.recipients:
        places = ", ".join(question.places)
        raise Refused("policy_recipient") from ValueError(
            f"figures of this hospital shall go on to {places}, and its policy does not allow that: say recipients: "
            f"[coordinator, {TRACKING}] in the policy, or leave `track` out of requests"
        )
    reply = Agreed(places=[*question.places], rests_on=question.rests_on)
    return Done(reply, describe_event(NOTHING), Message({}, {RECIPIENT: recipient, **to_facts(reply)}))
