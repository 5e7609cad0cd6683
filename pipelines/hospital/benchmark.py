"""Score a signed model of somebody else on all of this hospital's patients, none of whom it was trained on.

The model is not believed: its signature is checked against the hospital's own list before a byte of it is parsed, and
it holds tensors and settings, never code. Counts leave as in `evaluate`, noised where the hospital promises privacy.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import lru_cache

import torch
from torch import Tensor

from federation.registry import NotPermitted
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import SPLITS, Context, Done, Hospital, all_rows
from pipelines.hospital.kept import cohort_of, cut_of
from pipelines.hospital.private_limits import check_affordable
from pipelines.hospital.released_scores import ScoreNoise, score_findings, score_labels, score_masks
from pipelines.hospital.segmentation import keep_components
from pipelines.hospital.withdrawn import looked_at
from pipelines.models.answers import masks_of_probabilities
from pipelines.models.file import Ready, parse_ready
from pipelines.models.likeness import studies_of
from pipelines.models.signed import find_reading_differences, reading_of, refuse_number, settings_of
from pipelines.requests.benchmark import BENCHMARK, Benchmark, Scored
from pipelines.requests.writing import read_reply
from privacy.dp.chunks import compute_repeatably
from privacy.dp.events import NON_PRIVATE, Gaussian, describe_event
from privacy.message import Call, Message
from privacy.release.form import value_or_none
from privacy.release.gate import PRIVACY, Refused
from privacy.release.signature import Unsigned, check_signature

SEEN = "somebody else's finished model was scored on them"


def score_signed_model(hospital: Hospital, context: Context[Benchmark]) -> Done[Scored]:
    """Score a model on all patients, of all splits.

    The conversation begins with the file's SHA-256, so that the ledger names what was evaluated.

    Returns:
        Scores, as `evaluate` does, and `model`, the SHA-256 of the file that was evaluated.

    Raises:
        Refused: `oversized_model`, `policy_model`, `tampered_model`, `expired_model`, before the file is parsed;
            `malformed_model`: it is no finished model; `policy_inside`: patients of this hospital trained it;
            `malformed_cohort`: images were read otherwise than the model wants; `no_test_patients`; `policy_privacy`,
            `unprotected_scores`: this hospital promises privacy, and no epsilon, or no noise for masks, is there.
    """
    call, question, policy = context.call, context.question, hospital.policy
    ready = _read_trusted_model(hospital, call, question)
    epsilon = value_or_none(question.epsilon)
    if policy.promises and ready.task.kind == "segmentation":
        raise Refused("unprotected_scores") from ValueError("sums of overlaps have no noise, and patients are promised")
    if policy.promises and epsilon is None:
        raise Refused(PRIVACY) from ValueError("patients are promised privacy, and no epsilon is said")
    cohort = cohort_of(hospital, question.cohort)
    if odd := find_reading_differences(ready, cohort.recipe):
        raise Refused("malformed_cohort") from ValueError(f"not read as the signed model wants: {odd}")
    noise = _compute_noise(hospital, epsilon) if policy.promises and epsilon is not None else None
    check_affordable(hospital, [NON_PRIVATE if noise is None else noise], call)
    rows = all_rows(cohort, target=reading_of(ready).target, scratch=hospital.scratch())
    if not len(rows.y) and noise is None:  # with noise the released counts say how many there are
        raise Refused("no_test_patients")
    ready = replace(ready, module=ready.module.to(hospital.device))
    predicted = predict_probabilities(ready, cohort)
    if ready.task.kind == "segmentation":
        masks = masks_of_probabilities(predicted)
        masks = masks._replace(classes=keep_components(masks.classes, ready.kept_structures))
        scores, _ = score_masks(hospital, cohort, rows, [masks], ready.task.classes, question.copies)
    else:
        if noise is not None:
            cut_of(cohort)  # refuses a cohort in which one patient could change another's image
        score_noise = None if noise is None else ScoreNoise(noise.noise_multiplier, cut=None)
        scores = (
            score_findings(hospital, rows, predicted, question.copies, score_noise)
            if ready.task.kind == "findings"
            else score_labels(hospital, rows, predicted, question.copies, score_noise, ordered=ready.ordered)
        )
    seen = looked_at(question.cohort, dict.fromkeys(SPLITS, SEEN))
    reply = read_reply(BENCHMARK, Message(scores.tensors, {**scores.facts, "model": _digest_in(call)}))
    return Done(reply, describe_event(scores.event), Message({}, seen))


def _read_trusted_model(hospital: Hospital, call: Call, question: Benchmark) -> Ready:
    """The model, if the hospital's own list of signers vouches for it. Raises: Refused: see `benchmark`."""
    policy, file, signature = hospital.policy, question.model, question.signature
    if file.numel() > policy.max_model_bytes:
        text = f"the model has {file.numel()} bytes, and max_model_bytes of the policy is {policy.max_model_bytes}"
        raise Refused("oversized_model") from ValueError(text)
    data = file.cpu().numpy().tobytes()
    try:
        check_signature(data, signature, policy.trusted_models, today=date.fromisoformat(hospital.now()[:10]))
    except Unsigned as error:
        raise Refused(error.code) from error
    if _digest_in(call) != signature.statement.sha256:
        raise Refused("tampered_model") from ValueError("the conversation is named for another model")
    try:
        ready = refuse_number(parse_ready(data))
    except ValueError as error:
        if isinstance(error.__cause__, NotPermitted):  # the worker knows its code: policy_plugin
            raise error.__cause__ from None
        raise Refused("malformed_model") from error
    if dict(signature.statement.settings) != settings_of(ready):
        raise Refused("tampered_model") from ValueError("its settings are not those that were signed")
    run = ready.origin.run
    if run and (hospital.root / "conversations" / run).is_dir():
        raise Refused("policy_inside") from ValueError(f"this hospital took part in {run}, which trained the model")
    return ready


def _digest_in(call: Call) -> str:
    """The SHA-256 with which the conversation's name begins."""
    return call.run.partition("/")[2][:64]


def predict_probabilities(ready: Ready, cohort: Cohort) -> Tensor:
    """Probabilities (n, classes, *spatial) of a cohort's examples on the CPU, study by study as `predict` makes them:
    a translation depends on the whole study, and on nobody else.
    """
    study = studies_of(cohort.patient, cohort.position)
    device = next(ready.module.parameters()).device
    parts = []
    with compute_repeatably():  # with several, last bits change from one call to the next
        for number in range(study[-1] + 1):
            images = cohort.images[torch.from_numpy(study == number)]
            parts.append(ready.probabilities(ready.seen(images).to(device)).cpu())
    return torch.cat(parts)


def _compute_noise(hospital: Hospital, epsilon: float) -> Gaussian:
    """The event of the one noised histogram that costs the asked epsilon at the budget's delta."""
    budget = hospital.policy.budget
    return Gaussian(noise_for(epsilon, hospital.policy.delta if budget is None else budget.delta))


@lru_cache(maxsize=64)
def noise_for(epsilon: float, delta: float) -> float:
    """Standard deviation, in patients, of the one noised histogram that costs (epsilon, delta)."""
    from privacy.dp.accounting import mu_of  # slow to import

    return 1 / mu_of(epsilon, delta)
