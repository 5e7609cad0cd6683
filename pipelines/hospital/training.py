"""Federated training at the hospital: `introduce`, `train`, `finish`, `export`, and `pool` for a simulation's central
baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from federation.algorithm import has_one_model
from federation.augmentation import AUGMENTATIONS
from federation.conversation import load_memory
from federation.descent import Site
from federation.membership import is_separable
from federation.merging import shorten_update
from federation.participant import answer_training_call, prune_models
from federation.patches import build_patch_views
from federation.randomization import build_disturbance
from federation.randomness import derive_seed, use_seed
from federation.summing import KEY, Unsummable, hide_reply
from federation.torchio_views import build_torchio_function
from federation.transforms import build_views
from federation.upload import pack_reply
from pipelines.data.cohort import Cohort
from pipelines.data.images import IMAGES, pixel_spacing
from pipelines.data.stored import count_synthetic
from pipelines.hospital import rehearsal as rehearsed
from pipelines.hospital.channels import LOOKED, release_moments
from pipelines.hospital.figures import make_look
from pipelines.hospital.hospital import Context, Done, Hospital, rows_of
from pipelines.hospital.kept import cohort_of, cut_of
from pipelines.hospital.opening import Opening, own_model, parse_opening, read_opening
from pipelines.hospital.released_counts import need_counts
from pipelines.hospital.withdrawn import looked_at
from pipelines.requests.export import Export, Exported
from pipelines.requests.pool import Pool, Pooled
from pipelines.requests.request import Request
from pipelines.requests.train import (
    FINISH,
    INTRODUCE,
    TRAIN,
    Finished,
    Hidden,
    Introduce,
    Introduced,
    Train,
    Trained,
)
from pipelines.requests.writing import read_reply
from pipelines.settings.harmonization import default_scale
from privacy.dp.access import Access, Split, open_access
from privacy.dp.capability import restrict_access
from privacy.dp.events import NON_PRIVATE, NOTHING, Event, compose_events, describe_event
from privacy.message import Call, Json, Message, as_mapping, digest_parts, lay_out_bytes
from privacy.release import ledger as ledgers
from privacy.release.form import value_or_none
from privacy.release.gate import PRIVACY, Refused, find_unaffordable, lacks_noise
from privacy.release.policy import COORDINATOR, OUTSIDE, SITES
from privacy.secure_sum import find_forged_keys, make_key_pair, sign_key

R = TypeVar("R")
TRAINED: tuple[Split, ...] = ("train", "validation")
"""The splits that a run may learn from: its training reads no test patient."""
HIDDEN = "policy_secure_sum"
"""The refusal code if the policy asks for secure sums, and parameters would leave alone, or in a sum over too few."""
SECRET = "x25519"  # noqa: S105 - the name of a fact
"""The fact of an introduction's memory with the secret key for the run's secure sums."""
OF_ONE_SITE = ("cohort", "target", "privacy", "evaluation_noise")
"""Facts of an opening that may differ between the hospitals of a run."""
RECIPIENT = "recipient"
"""The fact of a memory with the recipient of the reply committed with it."""


def introduce(hospital: Hospital, context: Context[Introduce]) -> Done[Introduced]:
    """Accept a run: store its settings, and reply with what the method needs before round 1."""
    call, message, facts_of_run = context.call, context.message, context.message.facts
    start = check_affordable_opening(hospital, parse_opening(hospital, facts_of_run), call)
    site, events = _build_site(hospital, start, call)
    reply, memory = _participate(hospital, start, site, call, message, context.memory)
    said_something = bool(reply.tensors or reply.facts["algorithm"])
    secret: dict[str, Json] = {}
    if start.secure_sum:
        pair = make_key_pair()
        key = sign_key(pair.public, hospital.key(), run=call.run, site=hospital.name)
        reply, secret = Message(reply.tensors, {**reply.facts, KEY: key}), {SECRET: pair.secret}
    event = describe_event(compose_events(events() or ([NON_PRIVATE] if said_something else [])))
    facts = {**memory.facts, "opening": dict(facts_of_run), RECIPIENT: start.recipient, **secret}
    return Done(read_reply(INTRODUCE, reply), event, Message(memory.tensors, facts))


def train(hospital: Hospital, context: Context[Train]) -> Done[Trained | Hidden]:
    """Train one round."""
    return _take_part(hospital, context, TRAIN)


def finish_training(hospital: Hospital, context: Context[Train]) -> Done[Finished]:
    """Take the last merge, and score the model of the last round."""
    return _take_part(hospital, context, FINISH)


def _take_part(hospital: Hospital, context: Context[Train], request: Request[Train, R]) -> Done[R]:
    """The participant's reply; it acts by the request's name."""
    call = context.call
    start = check_affordable_opening(hospital, read_opening(hospital, call.run), call)
    keys = value_or_none(context.question.keys) or {}
    is_hidden = (
        request.name == TRAIN.name
        and start.secure_sum
        and rehearsed.sends_parameters(start.algorithm, start.task, start.work)
    )
    if is_hidden:
        check_sum(hospital, start, keys, call)
    site, events = _build_site(hospital, start, call)
    reply, memory = _participate(hospital, start, site, call, context.message, context.memory)
    if is_hidden:
        reply = hide_parameters(hospital, start, reply, keys, call, context.message)
    elif start.upload is not None and request.name == TRAIN.name:
        reply, memory = pack_reply(start.algorithm, reply, context.message, memory)
    # Only the coordinator gets the last validation loss.
    recipient = COORDINATOR if request.name == FINISH.name else start.recipient
    memory = Message(memory.tensors, {**memory.facts, RECIPIENT: recipient})
    # A reply depends on this request's patients and on memory from earlier rounds; in a private run the ledger already
    # charges for those rounds.
    return Done(
        read_reply(request, reply), describe_event(compose_events([*events(), model_release_event(start)])), memory
    )


def check_sum(hospital: Hospital, start: Opening, keys: Mapping[str, str], call: Call) -> None:
    """Check the hospitals among whose replies this one's shall be hidden, before any work.

    Raises:
        Refused: `stale_round`: a reply to this round has left before; `malformed_keys`: this hospital is not among
            them, or noise was planned for another number of them; `policy_secure_sum`: they are fewer than the policy
            asks for, or the policy names signing keys, and keys of this run are not signed by them.
    """
    needed, planned = hospital.policy.secure_sum, start.protection.hospitals if start.protection is not None else 1
    if hospital.name not in keys or (planned > 1 and len(keys) != planned):
        raise Refused("malformed_keys") from ValueError(
            f"a sum over {', '.join(sorted(keys)) or 'no hospital'}: needed are this hospital and as many others as "
            f"noise was planned for, {planned} in all"
        )
    if needed is not None and len(keys) < needed.hospitals:
        raise Refused(HIDDEN) from ValueError(
            f"a sum over {len(keys)} hospitals, and the policy asks for {needed.hospitals} (secure_sum)"
        )
    if any(_is_released_round(line, call) for line in ledgers.read_lines(hospital.ledger)):
        raise Refused("stale_round") from ValueError(
            "the ledger has a reply to this round, and the conversation has none: put back from an older copy, it "
            "would hide another update by the same masks"
        )
    other_keys = {name: key for name, key in keys.items() if name != hospital.name}
    if needed is not None and needed.signers and (forged := find_forged_keys(other_keys, needed.signers, run=call.run)):
        raise Refused(HIDDEN) from ValueError(
            f"the keys of {', '.join(forged)} are not signed by the keys that the policy names (secure_sum.signers)"
        )


def hide_parameters(
    hospital: Hospital, start: Opening, reply: Message, keys: Mapping[str, str], call: Call, received: Message
) -> Message:
    """The reply to what was received, as words that only their sum over the hospitals of `keys` reveals; its update is
    shortened first, if the run asks for that.

    Raises:
        Refused: `malformed_keys`; `not_summable`: a number is not finite, or too large to be added up.
    """
    introduced = load_memory(hospital.conversation(call.run), 0).facts
    secret, terms = str(introduced[SECRET]), _terms_of_sum(start, as_mapping(introduced["opening"]), received)
    reply = shorten_update(reply, received, start.bound)
    try:
        return hide_reply(start.algorithm, reply, secret=secret, keys=keys, site=hospital.name, call=call, terms=terms)
    except Unsummable as error:
        raise Refused("not_summable") from error
    except ValueError as error:
        raise Refused("malformed_keys") from error


def _is_released_round(line: Mapping[str, Json], call: Call) -> bool:
    """Whether a line of the ledger is a reply to this round that left."""
    sought = (call.run, call.round, call.request, None)
    return tuple(line.get(key) for key in ("run", "round", "request", "refused")) == sought


def _terms_of_sum(start: Opening, opening: Mapping[str, Json], received: Message) -> Json:
    """What the hospitals of a sum must have been told alike, or the coordinator could know the others' part in advance:
    the run's settings, the model that was sent if all get the same, and of shared noise how much each adds, to what.
    """
    common = {name: fact for name, fact in opening.items() if name not in OF_ONE_SITE}
    model = digest_parts(lay_out_bytes(Message(received.tensors))) if has_one_model(start.algorithm) else None
    protection = start.protection
    noise: Json = None
    if protection is not None and protection.hospitals > 1:
        noise = {"clip": protection.clip, "noise": protection.noise, "hospitals": protection.hospitals}
    return {"settings": common, "model": model, "noise": noise}


def export_model(hospital: Hospital, context: Context[Export]) -> Done[Exported]:
    """Release this hospital's model of a checkpoint, and the moments of its channels if they are asked for.

    Raises:
        Refused: `no_model`; `policy_recipient`: this hospital's models do not go there; `policy_secure_sum`: the run
            hides parameters in sums, and this would be a model of this hospital alone; or as `release_moments`.
    """
    question = context.question
    recipient = OUTSIDE if question.recipient == OUTSIDE else COORDINATOR
    if recipient not in hospital.policy.recipients:
        raise Refused("policy_recipient") from ValueError(
            "this hospital's models shall go to external sites, and its policy does not allow that: "
            f"say recipients: [coordinator, {OUTSIDE}] in the policy"
        )
    start = read_opening(hospital, question.train_run)
    if start.secure_sum and not has_one_model(start.algorithm):
        raise Refused(HIDDEN) from ValueError(
            f"a model that this hospital alone has by {start.algorithm.name} would leave a run in which only sums do "
            "(secure_sum): say evaluate: {public: false}, and leave route out"
        )
    _, params = own_model(hospital, question.train_run, question.checkpoint, value_or_none(question.best))
    event, how = model_release_event(start), value_or_none(question.moments)
    if how is None:
        return Done(Exported(parameters=params), describe_event(event), Message({}, {RECIPIENT: recipient}))
    released = release_moments(hospital, start, params, how, context.call)
    mean, square, noise = released.moments
    reply = Exported(
        parameters=params,
        channel_mean=mean,
        channel_square=square,
        channel_noise=noise,
        channel_patients=released.patients,
    )
    memory = Message({}, {RECIPIENT: recipient, **looked_at(start.cohort, {"train": LOOKED})})
    return Done(reply, describe_event(compose_events([event, released.event])), memory)


def pool_images(hospital: Hospital, context: Context[Pool]) -> Done[Pooled]:
    """Release training and validation images for the central baseline of a simulation, if the policy allows it."""
    rows = rows_of(
        cohort_of(hospital, context.question.cohort),
        target=value_or_none(context.question.target),
        scratch=hospital.scratch(),
    )
    images = {f"{split}/x": rows[split].x for split in TRAINED}
    labels = {f"{split}/y": rows[split].y for split in TRAINED}
    patients = {f"{split}/patient": rows[split].patient for split in TRAINED}
    return Done(Pooled(images=images, labels={**labels, **patients}), describe_event(NON_PRIVATE))


def delete_unneeded_models(hospital: Hospital, call: Call, best: Json, memories: Sequence[Message]) -> None:
    """After the release, delete models that no checkpoint can need. best, memories: see `prune_models`."""
    best = best if isinstance(best, int) else None
    prune_models(hospital.models(call.run), memories, best=best, newest=call.round - 1)


def check_affordable_opening(hospital: Hospital, start: Opening, call: Call) -> Opening:
    """Check before the work that the hospital's policy allows a request; return its opening.

    A site can always finish: if the budget cannot pay the last validation, it is left out. A private round is rehearsed
    even without a budget, to see that it ends.

    Raises:
        Refused: `policy_secure_sum`: parameters would leave alone; `policy_recipient`: the reply would go to sites too;
            `malformed_opening`: the work would take too long; or with the code of `need_counts` or of
            `privacy.release.gate.find_unaffordable`.
    """
    if call.request != "finish" and hospital.policy.secure_sum is not None and not start.secure_sum:
        raise Refused(HIDDEN) from ValueError(
            "the coordinator would see this hospital's parameters alone, and the policy asks for sums (secure_sum): "
            "say train: {secure_sum: true} in the run"
        )
    if start.secure_sum and (problem := rehearsed.find_sum_problem(start.algorithm, start.task, start.work)):
        raise Refused(HIDDEN) from ValueError(problem)
    if call.request != "finish" and start.recipient == SITES and SITES not in hospital.policy.recipients:
        raise Refused("policy_recipient") from ValueError(
            f"{start.algorithm.name} hands what this hospital says on to all other sites, and its policy does not let "
            "it: say recipients: [coordinator, sites] in the policy, or leave this method out"
        )
    promises, events = hospital.policy.promises, list[Event]([NON_PRIVATE])
    if start.protection is not None:
        cut = cut_of(cohort_of(hospital, start.cohort)) if promises else ""
        seen = rehearsed.rehearse_private_events(
            start.algorithm, start.task, start.work, replace(start.protection, cut=cut)
        )
        if hospital.policy.require is not None and lacks_noise(seen.training):
            raise Refused(PRIVACY)
        events = {"introduce": [seen.introduction], "finish": [seen.validation]}.get(
            call.request, [seen.training, *([seen.validation] if call.round > 1 else [])]
        )
    if not promises:
        return start
    need_counts(hospital)
    events = [hospital.counts, *events]  # every sum is divided by the number of patients
    refusal = find_unaffordable(hospital.policy, hospital.ledger, events, call.run)
    if refusal is None:
        return start
    if call.request == "finish" and start.protection is not None:
        return replace(start, protection=replace(start.protection, validation_noise=None))
    raise Refused(refusal.code) from ValueError(refusal.why)


def _participate(
    hospital: Hospital, start: Opening, site: Site, call: Call, message: Message, memory: Message
) -> tuple[Message, Message]:
    """The reply and the memory. Raises: Refused: `malformed_message`, `unexpected_reply`: see `rehearsed`."""
    how, protection = (start.algorithm, start.task, start.work), start.protection
    if protection is not None and hospital.policy.promises:
        rehearsed.check_trainable(*how, protection, hospital.name, call, message, memory)
    averaged = start.averaged and not is_separable(start.algorithm)  # earlier models hold what who left has said
    look = make_look(hospital, start)
    with use_seed(derive_seed(start.seed, hospital.name, call.round, call.request)):
        reply, new_memory = answer_training_call(
            start.algorithm, site, call, message, memory, hospital.models(call.run), averaged=averaged, look=look
        )
    rehearsed.check_reply(*how, call, message, reply, private=protection is not None)
    return reply, new_memory


def model_release_event(start: Opening) -> Event:
    """The event of releasing a run's models, besides those already in the ledger."""
    return NON_PRIVATE if start.protection is None else NOTHING


def data_access(hospital: Hospital, cohort: Cohort, start: Opening, seed: int) -> Access:
    """Open access to this hospital's patients for one request: private access, if the run is private."""
    rows = rows_of(cohort, hospital.device, start.target, scratch=hospital.scratch(), splits=TRAINED)
    augment = AUGMENTATIONS[start.work.augment]
    if start.work.randomize:
        scale = default_scale(IMAGES.validate_python(cohort.recipe["images"]))
        augment = build_disturbance(start.work.randomize, scale.low, scale.high, before=augment)
    if start.work.torchio:
        spacing, flat = pixel_spacing(IMAGES.validate_python(cohort.recipe["images"])), rows["train"].x.dim() == 4
        augment = build_views(build_torchio_function(start.work.torchio, flat=flat, spacing=spacing), after=augment)
    if start.work.transform is not None:
        augment = build_views(start.work.transform, after=augment)
    if start.task.patch is not None:
        augment = build_patch_views(start.task.patch, start.work.foreground, start.task.classes, after=augment)
    if start.protection is None:
        work = start.work
        return open_access(
            rows,
            batch=work.batch,
            seed=seed,
            balance=work.balance,
            augment=augment,
            passes=work.passes,
            mixup=work.mixup,
            fixed_size=start.task.patch is not None,
        )
    from privacy.dp.private_access import open_private  # slow to import

    protection = replace(start.protection, cut=cut_of(cohort))
    counts = need_counts(hospital)
    # Synthetic images count as patients of their own: how many there are follows from released counts.
    sizes = None if counts is None else {**counts.sizes(), "train": counts.patients("train") + count_synthetic(cohort)}
    return open_private(rows, protection, augment=augment, counts=hospital.counts, sizes=sizes)


def _build_site(hospital: Hospital, start: Opening, call: Call) -> tuple[Site, Callable[[], list[Event]]]:
    """The method's view of the site; and a function with the privacy events so far, which the method does not see."""
    seed = derive_seed(start.seed, hospital.name, call.round, call.request, "draws")
    access = data_access(hospital, cohort_of(hospital, start.cohort), start, seed)
    work = start.work.at_round(call.round, start.rounds)
    return Site(hospital.name, start.task, work, restrict_access(access)), lambda: access.events
