"""Score a model on the hospital's test patients: counts leave, scores of single patients stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from federation.calibration import Calibrated, calibrate_model, has_adaptable_norms
from federation.descent import Site
from federation.finetuning import Tuning, fine_tuned
from federation.matching import ChannelMoments, has_matchable_norms
from federation.parameters import loaded
from federation.randomness import derive_seed, use_seed
from federation.task import STEPS
from pipelines.data.cohort import Cohort
from pipelines.data.stored import of_patients, structures_of
from pipelines.hospital.finished_models import training_history
from pipelines.hospital.hospital import Context, Done, Hospital, rows_of
from pipelines.hospital.kept import central_name, cohort_of, cut_of, scores_name
from pipelines.hospital.model_file import make_ready
from pipelines.hospital.opening import Opening, own_model, parse_opening, read_opening
from pipelines.hospital.private_limits import check_affordable
from pipelines.hospital.released_scores import (
    ReleasedScores,
    ScoreNoise,
    score_findings,
    score_labels,
    score_masks,
    score_numbers,
)
from pipelines.hospital.segmentation import find_largest, floor_of, keep_components, kind_of
from pipelines.hospital.training import data_access, model_release_event
from pipelines.hospital.validation_scores import validation_scores
from pipelines.loader.validation import to_plain
from pipelines.models.answers import predict_classes, predict_masks
from pipelines.models.file import LARGEST
from pipelines.requests.evaluate import EVALUATE, Evaluate, Scored
from pipelines.requests.writing import read_reply
from pipelines.runs.store import DiskFolder
from pipelines.settings.variants import Variant
from privacy.dp.access import Rows, Split
from privacy.dp.events import NON_PRIVATE, Gaussian, Part, compose_events, describe_event
from privacy.message import Json, Message, Params, to_bytes
from privacy.release.form import value_or_none
from privacy.release.gate import Refused
from privacy.system_errors import of_machine


def evaluate_model(hospital: Hospital, context: Context[Evaluate]) -> Done[Scored]:
    """Score a model on the test split.

    Returns:
        Histograms and confusion counts with their bootstrap copies (see `evaluation.histograms`), or in a private run
        noised histograms (`evaluation.votes`), or sums of overlaps (`evaluation.overlap`), or of a number sums of
        errors or a noised histogram of them (`evaluation.numbers`), or of several findings histograms of each
        (`evaluation.findings`); and the model's round.

    Raises:
        Refused: `no_test_patients`; `malformed_model`: it is that of another network; `malformed_calibration`: it is
            does not fit the network, or the run is private, whose histograms would tell of training patients
            without noise; `unprotected_scores`: the run is private, and overlaps have no noise yet; `malformed_window`.
    """
    question = context.question
    tensors_of_model: Params = value_or_none(question.tensors) or {}
    opening_facts = value_or_none(question.opening)
    opening_with_cohort = None if opening_facts is None else {**opening_facts, "cohort": question.cohort}
    start = (
        read_opening(hospital, question.train_run)
        if opening_with_cohort is None
        else parse_opening(hospital, opening_with_cohort)
    )
    own_one = question.train_run, question.checkpoint, question.best
    round_, params = (None, tensors_of_model) if tensors_of_model else own_model(hospital, *own_one)
    module = _load_model(start, params, promises=hospital.policy.promises).to(hospital.device)
    cohort = cohort_of(hospital, question.cohort)
    variant = _check_variant(question, start, module, cohort)
    window = _check_window(value_or_none(question.window), start)
    # All histograms of a reply together cost what one with this noise does.
    private = start.protection is not None
    noise = Part(cut_of(cohort), "test", Gaussian(start.evaluation_noise)) if private else NON_PRIVATE
    check_affordable(hospital, [noise], context.call)
    splits = rows_of(cohort, hospital.device, start.target, scratch=hospital.scratch())
    is_count_released = private and hospital.policy.promises  # then an error would tell what released counts hide
    if not len(splits["test"].y) and not is_count_released:
        raise Refused("no_test_patients")
    training_rows = rows_of(of_patients(cohort), hospital.device, start.target, scratch=hospital.scratch())["train"]
    served = _build_served_network(hospital, start, cohort, module, training_rows, variant, _read_moments(question))
    largest = _find_largest(start, cohort, served, splits, variant, window)
    scores = (
        _score_masks(hospital, start, cohort, served, splits, question, window, largest)
        if start.task.kind == "segmentation"
        else _score_labels(hospital, start, cohort, served, splits, question)
    )
    event = scores.event
    if not tensors_of_model:
        event = compose_events([event, model_release_event(read_opening(hospital, question.train_run))])
        chosen_by = {} if start.target else validation_scores(start.task, served, splits["validation"])
        DiskFolder(hospital.root / "scores").write(
            scores_name(*own_one, variant), to_bytes(Message({**scores.patient_scores, **chosen_by}))
        )
        origin: dict[str, Json] = {"run": question.train_run, "checkpoint": question.checkpoint}
        calibration = None if variant is None else to_plain(variant)
        origin |= {"round": round_, "window": to_plain(value_or_none(question.window)), "calibration": calibration}
        origin |= {LARGEST: [*largest]} if largest else {}
        origin |= training_history(hospital, question.train_run, value_or_none(question.rounds))
        label = question.label if variant is None else value_or_none(question.variant) or question.label
        make_ready(hospital, label, start, served, cohort, origin)
    elif (
        opening_with_cohort is not None and question.central is True and variant is None
    ):  # shown on the hospital's page beside its own models
        visiting = Message(params, {"opening": opening_with_cohort})
        DiskFolder(hospital.root / "scores").write(central_name(question.train_run), to_bytes(visiting))
    return Done(read_reply(EVALUATE, Message(scores.tensors, {"round": round_, **scores.facts})), describe_event(event))


def _load_model(start: Opening, params: Params, *, promises: bool) -> nn.Module:
    """A model in the network of its opening. promises: with a budget, whose refusal codes must not depend on patients.

    Raises:
        Refused: `malformed_model`: it is that of another network, or one that images of this size cannot pass.
    """
    try:
        module = loaded(start.algorithm.network(start.task), params)
        if promises:
            start.task.probabilities(module, torch.zeros(1, *start.task.inputs))
    except (RuntimeError, ValueError) as error:
        if of_machine(error):
            raise
        raise Refused("malformed_model") from error
    return module


def _score_labels(
    hospital: Hospital,
    start: Opening,
    cohort: Cohort,
    served: Calibrated,
    splits: Mapping[Split, Rows],
    question: Evaluate,
) -> ReleasedScores:
    """Scores of a model that gives classes, a number or several findings, with noise in a private run."""
    private, rows = start.protection is not None, splits["test"]
    probabilities = served.probabilities(start.task, rows.x, alone=private)
    noise = ScoreNoise(start.evaluation_noise, cut_of(cohort)) if private else None
    if start.task.kind == "regression":
        has_guess = question.floor is True and not private and len(splits["train"].y) > 0
        guess = float(splits["train"].y.double().median()) / STEPS if has_guess else None
        return score_numbers(hospital, rows, probabilities, question.copies, noise, guess)
    if start.task.kind == "findings":
        return score_findings(hospital, rows, probabilities, question.copies, noise)
    return score_labels(hospital, rows, probabilities, question.copies, noise, ordered=start.task.ordered)


def _score_masks(
    hospital: Hospital,
    start: Opening,
    cohort: Cohort,
    served: Calibrated,
    splits: Mapping[Split, Rows],
    question: Evaluate,
    window: tuple[int, ...] | None,
    largest: Sequence[int],
) -> ReleasedScores:
    """Scores of a segmentation model. largest: structures with their largest component only. Raises: Refused: see
    `evaluate`.
    """
    if start.protection is not None:
        raise Refused("unprotected_scores") from ValueError("sums of overlaps have no noise, and the run promises it")
    classes, test = start.task.classes, splits["test"]
    predicted = predict_masks(start.task, served.module, test.x, window=window)
    members = structures_of(cohort, classes)
    cleaned = keep_components(predicted.classes, [members[number - 1] for number in largest])
    masks = predicted._replace(classes=cleaned)
    low = floor_of(cohort, splits, classes) if question.floor is True else None
    return score_masks(hospital, cohort, test, [masks], classes, question.copies, low)[0]


def _find_largest(
    start: Opening,
    cohort: Cohort,
    served: Calibrated,
    splits: Mapping[Split, Rows],
    variant: Variant | None,
    window: tuple[int, ...] | None,
) -> tuple[int, ...]:
    """The structures of which a variant keeps the largest component only, as validation patients here decide."""
    if variant is None or variant.calibration != "largest":
        return ()
    rows = splits["validation"]
    if not len(rows.y):
        return ()
    predicted = predict_classes(start.task, served.module, rows.x, window=window)
    return find_largest(cohort, rows, predicted, start.task.classes)


def _check_window(asked_sides: list[int] | None, start: Opening) -> tuple[int, ...] | None:
    """Raises: Refused: `malformed_window`: it is larger than an image, or has other axes."""
    sides = start.task.spatial
    if asked_sides is None:
        return None
    if start.task.kind != "segmentation":
        raise Refused("malformed_window") from ValueError("a window is for masks, and this model gives labels")
    window = tuple(asked_sides)
    if len(window) != len(sides) or not all(1 <= side <= most for side, most in zip(window, sides, strict=True)):
        raise Refused("malformed_window") from ValueError(f"a window {asked_sides} for images of {sides}")
    return window


def _check_variant(question: Evaluate, start: Opening, module: nn.Module, cohort: Cohort) -> Variant | None:
    """The requested calibration. Raises: Refused: `malformed_calibration`: it does not fit."""
    variant = value_or_none(question.calibration)
    if variant is None:
        return None
    try:
        if start.protection is not None:
            raise ValueError("a private run releases nothing that training patients shaped without noise")
        if "centred" in (variant.calibration or "") and start.task.kind == "segmentation":
            raise ValueError(f"{variant.calibration} moves the threshold of labels, and this run learns masks")
        if variant.calibration == "largest" and (start.task.kind != "segmentation" or kind_of(cohort) == "slices"):
            raise ValueError("largest is for masks of whole volumes or pictures")
        if "adabn" in (variant.calibration or "") and not has_adaptable_norms(module):
            raise ValueError(f"{variant.calibration} needs batch norm, and the network of this run has none")
        if variant.calibration == "matched" and not has_matchable_norms(module):
            raise ValueError("matched needs norms with a scale and a shift for each channel, and the network has none")
        if variant.calibration == "matched" and _read_moments(question) is None:
            raise ValueError("matched needs the moments of the model's channels, and none came")
        if value_or_none(question.variant) is None:
            raise ValueError("it has no label, as variant")
    except ValueError as error:
        raise Refused("malformed_calibration") from error
    return variant


def _read_moments(question: Evaluate) -> ChannelMoments | None:
    """The moments of the model's channels on its training images, if they came."""
    mean, square = value_or_none(question.channel_mean), value_or_none(question.channel_square)
    return None if mean is None or square is None else ChannelMoments(mean.double().cpu(), square.double().cpu())


def _build_served_network(
    hospital: Hospital,
    start: Opening,
    cohort: Cohort,
    module: nn.Module,
    train: Rows,
    variant: Variant | None,
    moments: ChannelMoments | None,
) -> Calibrated:
    """The network that is scored: the model as it is, fine-tuned here, or calibrated.

    Raises:
        Refused: `malformed_calibration`: the moments are of another network, or this hospital has no training patients.
    """
    if variant is None or variant.calibration is None or variant.calibration == "largest":
        return Calibrated(module)
    if variant.calibration == "fine_tuned":
        return Calibrated(
            module if variant.tuning is None else _fine_tune(hospital, start, cohort, module, variant.tuning)
        )
    try:
        return calibrate_model(start.task, module, train, variant.calibration, variant.at, moments)
    except ValueError as error:
        if variant.calibration != "matched":
            raise
        raise Refused("malformed_calibration") from error


def _fine_tune(hospital: Hospital, start: Opening, cohort: Cohort, module: nn.Module, tuning: Tuning) -> nn.Module:
    """The model, fine-tuned here; the same model and cohort always give the same result."""
    seed = derive_seed(start.seed, hospital.name, "fine_tuned")
    site = Site(hospital.name, start.task, start.work, data_access(hospital, cohort, start, derive_seed(seed, "draws")))
    with use_seed(seed):
        return fine_tuned(site, module, tuning)
