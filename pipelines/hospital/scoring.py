"""Score a model on the hospital's test patients: counts leave, scores of single patients stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from evaluation.histograms import Floats, Ints, count_scores, to_tensors
from evaluation.noised import to_tensors as noised_tensors
from evaluation.votes import release_histograms
from federation.calibration import Calibrated, calibrate_model, has_adaptable_norms
from federation.descent import Site
from federation.finetuning import Tuning, fine_tuned
from federation.parameters import loaded
from federation.randomness import derive_seed, use_seed
from pipelines.data.cohort import Cohort
from pipelines.data.stored import of_patients
from pipelines.hospital.finished_models import training_history
from pipelines.hospital.hospital import SPLITS, Context, Done, Hospital, rows_of
from pipelines.hospital.kept import central_name, cohort_of, cut_of, scores_name
from pipelines.hospital.model_file import make_ready
from pipelines.hospital.opening import Opening, own_model, parse_opening, read_opening
from pipelines.hospital.private_limits import check_affordable
from pipelines.hospital.released_counts import need_counts
from pipelines.hospital.segmentation import floor_of, patient_scores, reply_tensors, score_patients
from pipelines.hospital.training import data_access, model_release_event
from pipelines.hospital.validation_scores import validation_scores
from pipelines.models.answers import predict_classes
from pipelines.requests.evaluate import EVALUATE, Evaluate, LabelsScored, MasksScored, NoisedLabelsScored
from pipelines.requests.writing import read_reply
from pipelines.runs.store import DiskFolder
from pipelines.settings.variants import Variant
from privacy.dp.access import Rows, Split
from privacy.dp.events import NON_PRIVATE, Event, Gaussian, Part, compose_events, describe_event
from privacy.dp.mechanisms import vote_histogram
from privacy.message import Json, Message, Params, to_bytes
from privacy.release.form import value_or_none
from privacy.release.gate import Refused
from privacy.system_errors import of_machine


def evaluate_model(
    hospital: Hospital, context: Context[Evaluate]
) -> Done[LabelsScored | MasksScored | NoisedLabelsScored]:
    """Score a model on the test split.

    Returns:
        Histograms and confusion counts with their bootstrap copies (see `evaluation.histograms`), or in a private run
        noised histograms (`evaluation.votes`), or sums of overlaps (`evaluation.overlap`); and the model's round.

    Raises:
        Refused: `no_test_patients`; `malformed_model`: it is that of another network; `malformed_calibration`: it is
            does not fit the network, or the run is private, whose histograms would tell of training patients
            without noise; `unprotected_scores`: the run is private, and overlaps have no noise yet; `malformed_window`.
    """
    question, facts, tensors_of_model = context.question, context.message.facts, context.message.tensors
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
    variant, window = _check_variant(question, start, module), _check_window(value_or_none(question.window), start)
    cohort = cohort_of(hospital, question.cohort)
    # All histograms of a reply together cost what one with this noise does.
    private = start.protection is not None
    noise = Part(cut_of(cohort), "test", Gaussian(start.evaluation_noise)) if private else NON_PRIVATE
    check_affordable(hospital, [noise], context.call)
    splits = rows_of(cohort, hospital.device, start.target)
    if not len(splits["test"].y):
        raise Refused("no_test_patients")
    training_rows = rows_of(of_patients(cohort), hospital.device, start.target)["train"]
    served = _build_served_network(hospital, start, cohort, module, training_rows, variant)
    (tensors, facts_out, event), patient_scores = (
        _score_masks(hospital, start, cohort, served, splits, question, window)
        if start.task.kind == "segmentation"
        else _score_labels(hospital, start, cohort, served, splits, question.copies)
    )
    if not tensors_of_model:
        event = compose_events([event, model_release_event(read_opening(hospital, question.train_run))])
        chosen_by = {} if start.target else validation_scores(start.task, served, splits["validation"])
        DiskFolder(hospital.root / "scores").write(
            scores_name(facts), to_bytes(Message({**patient_scores, **chosen_by}))
        )
        origin: dict[str, Json] = {"run": question.train_run, "checkpoint": question.checkpoint}
        origin |= {"round": round_, "window": facts.get("window"), "calibration": facts.get("calibration")}
        origin |= training_history(hospital, question.train_run, value_or_none(question.rounds))
        label = question.label if variant is None else value_or_none(question.variant) or question.label
        make_ready(hospital, label, start, served, cohort, origin)
    elif (
        opening_with_cohort is not None and question.central is True and variant is None
    ):  # shown on the hospital's page beside its own models
        visiting = Message(params, {"opening": opening_with_cohort})
        DiskFolder(hospital.root / "scores").write(central_name(facts), to_bytes(visiting))
    return Done(read_reply(EVALUATE, Message(tensors, {"round": round_, **facts_out})), describe_event(event))


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


ReleasedScores: TypeAlias = tuple[Mapping[str, Tensor], dict[str, Json], Event]
"""Tensors, facts and the event of a reply."""
PatientScores: TypeAlias = Mapping[str, Tensor]
"""The hospital's copy of single patients' scores, for its page."""


def _score_labels(
    hospital: Hospital,
    start: Opening,
    cohort: Cohort,
    served: Calibrated,
    splits: Mapping[Split, Rows],
    copies: int,
) -> tuple[ReleasedScores, PatientScores]:
    """Released scores of a classifier, and those that stay."""
    rows, private = splits["test"], start.protection is not None
    probabilities = served.probabilities(start.task, rows.x, alone=private).cpu()
    # NaN counts as no decision; failing here instead would reveal one bit about a patient.
    probabilities = probabilities.nan_to_num(nan=1.0 / start.task.classes)
    tested = Rows(probabilities, rows.y.cpu(), rows.patient.cpu())
    if start.protection is None:
        reply = count_exact_scores(hospital, tested, copies)
    else:
        reply = noise_scores(hospital, tested, start.evaluation_noise, cut_of(cohort))
    return reply, {"y": rows.y, "probabilities": probabilities, "patient": rows.patient}


def _score_masks(
    hospital: Hospital,
    start: Opening,
    cohort: Cohort,
    served: Calibrated,
    splits: Mapping[Split, Rows],
    question: Evaluate,
    window: tuple[int, ...] | None,
) -> tuple[ReleasedScores, PatientScores]:
    """Released scores of a segmentation model, and those that stay. Raises: Refused: see `evaluate`."""
    if start.protection is not None:
        raise Refused("unprotected_scores") from ValueError("sums of overlaps have no noise, and the run promises it")
    classes, test = start.task.classes, splits["test"]
    values = score_patients(cohort, test, predict_classes(start.task, served.module, test.x, window=window), classes)
    low = floor_of(cohort, splits, classes) if question.floor is True else None
    return (reply_tensors(hospital, values, low, question.copies), {}, NON_PRIVATE), patient_scores(values, low)


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


def _check_variant(question: Evaluate, start: Opening, module: nn.Module) -> Variant | None:
    """The requested calibration. Raises: Refused: `malformed_calibration`: it does not fit."""
    variant = value_or_none(question.calibration)
    if variant is None:
        return None
    try:
        if start.protection is not None:
            raise ValueError("a private run releases nothing that training patients shaped without noise")
        if "centred" in (variant.calibration or "") and start.task.kind == "segmentation":
            raise ValueError(f"{variant.calibration} moves the threshold of labels, and this run learns masks")
        if "adabn" in (variant.calibration or "") and not has_adaptable_norms(module):
            raise ValueError(f"{variant.calibration} needs batch norm, and the network of this run has none")
        if value_or_none(question.variant) is None:
            raise ValueError("it has no label, as variant")
    except ValueError as error:
        raise Refused("malformed_calibration") from error
    return variant


def _build_served_network(
    hospital: Hospital, start: Opening, cohort: Cohort, module: nn.Module, train: Rows, variant: Variant | None
) -> Calibrated:
    """The network that is scored: the model as it is, fine-tuned here, or calibrated."""
    if variant is None or variant.calibration is None:
        return Calibrated(module)
    if variant.calibration == "fine_tuned":
        return Calibrated(
            module if variant.tuning is None else _fine_tune(hospital, start, cohort, module, variant.tuning)
        )
    return calibrate_model(start.task, module, train, variant.calibration, variant.at)


def _fine_tune(hospital: Hospital, start: Opening, cohort: Cohort, module: nn.Module, tuning: Tuning) -> nn.Module:
    """The model, fine-tuned here; the same model and cohort always give the same result."""
    seed = derive_seed(start.seed, hospital.name, "fine_tuned")
    site = Site(hospital.name, start.task, start.work, data_access(hospital, cohort, start, derive_seed(seed, "draws")))
    with use_seed(seed):
        return fine_tuned(site, module, tuning)


def count_exact_scores(hospital: Hospital, tested: Rows, copies: int) -> ReleasedScores:
    """Histograms and confusion counts with bootstrap copies; one patient's contribution is not bounded.

    tested: probabilities as x, and the true classes as y.
    """
    counts = count_scores(
        tested.y.numpy(),
        tested.x.numpy(),
        tested.patient.numpy(),
        copies=copies,
        seed=hospital.bootstrap_seed(),
        site=hospital.name,
    )
    return to_tensors(counts), {}, NON_PRIVATE


def noise_scores(hospital: Hospital, tested: Rows, noise: float, cut: str | None) -> ReleasedScores:
    """Noised histograms, to each of which a patient adds 1 in total; they cost as much as one with `noise`. The number
    of patients is declared public, or, with a budget, the released one. cut: the division of whose test patients
    `tested` is; None: these are all patients.
    """
    y, whose, known = tested.y, tested.patient, need_counts(hospital)
    splits, classes = SPLITS if cut is None else ("test",), range(tested.x.shape[1])
    each = None if known is None else [known.of_classes(split) for split in splits]
    class_patients = (
        [len(torch.unique(whose[y == label])) for label in classes]
        if each is None
        else [*map(sum, zip(*each, strict=True))]
    )
    number = len(torch.unique(whose)) if known is None else sum(map(known.patients, splits))
    events: list[Event] = []

    def add_noise(votes: Ints, deviation: float) -> Floats:
        histogram = vote_histogram(torch.from_numpy(votes), noise_multiplier=deviation)
        events.append(histogram.event)
        return histogram.value.numpy()

    release = release_histograms(
        y.numpy(),
        tested.x.numpy(),
        whose.numpy(),
        noise=noise,
        class_patients=class_patients,
        number=number,
        add_noise=add_noise,
    )
    facts: dict[str, Json] = {
        "noise": noise,
        "patients": number,
        "images": len(y) if known is None else sum(class_patients),
        "class_patients": list(class_patients),
    }
    event = compose_events(events)
    return (
        noised_tensors(release),
        facts,
        compose_events([hospital.counts, event if cut is None else Part(cut, "test", event)]),
    )
