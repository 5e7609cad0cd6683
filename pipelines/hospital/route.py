"""At an external site: adapt the sites' models to its unlabelled images, and score the result.

The network sees all of the hospital's images but none of its masks or labels, which serve only to score all patients,
on the images that the network was adapted to, as in IOP-FL. Only `fine_tuned` trains with labels, on training patients;
then every line sees and scores test patients alone. Masks may still shape the images: pictures with
`fit: around` are cropped about their true masks, and studies without the target are not used. The adapted model stays
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from federation.descent import Site
from federation.finetuning import fine_tuned
from federation.matching import ChannelMoments, match_channels, order_norms
from federation.parameters import loaded, section
from federation.randomness import derive_seed, use_seed
from federation.task import Task
from federation.windows import cut_windows
from personalize.adaptation import Adapted
from personalize.adaptation_baselines import ensemble, tent
from personalize.adaptation_rotation import RotationNetwork
from personalize.adaptation_turns import train_at_test
from personalize.routing import Routed, coefficients
from personalize.routing_outside import route_experts as routed
from pipelines.data.cohort import Cohort
from pipelines.hospital.adaptation import adaptation_facts, file_of, select_masks_to_show, summarize_coefficients
from pipelines.hospital.hospital import SPLITS, Context, Done, Hospital, all_rows, rows_of
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.opening import Opening, parse_opening
from pipelines.hospital.private_limits import check_affordable
from pipelines.hospital.released_scores import ReleasedScores, score_labels, score_masks
from pipelines.hospital.training import data_access
from pipelines.hospital.withdrawn import looked_at
from pipelines.models.answers import Masks, masks_of_probabilities, predict_masks
from pipelines.requests.route import ROUTE, Route
from pipelines.requests.scores import LabelScores, MaskScores
from pipelines.requests.writing import read_reply
from pipelines.runs.listing import list_paths
from pipelines.runs.store import DiskFolder
from pipelines.settings.route import FineTuned, How, Matched, find_patch_problem
from privacy.dp.access import Rows, Split
from privacy.dp.capability import restrict_access
from privacy.dp.events import NON_PRIVATE, describe_event
from privacy.message import Call, Message, Params, to_bytes
from privacy.release.form import value_or_none
from privacy.release.gate import Refused

INSIDE = "introduce-0"
"""A committed reply that shows that the hospital takes part in the federation."""


def route_models(hospital: Hospital, context: Context[Route]) -> Done[LabelScores | MaskScores]:
    """Make a model for this site and score it on all patients, or on test patients.

    Returns:
        Scores, as `evaluate` does.

    Raises:
        Refused: `malformed_route`: models and way do not go together; `policy_inside`: this hospital takes part in the
            federation; `no_test_patients`; or with the code of `privacy.release.gate.find_unaffordable`, before any
            work.
    """
    call, question, how, copies = context.call, context.question, context.question.how, context.question.copies
    _check_willing(hospital, call)
    seed = derive_seed(question.seed, hospital.name, question.line)
    cohort = cohort_of(hospital, question.cohort)
    start, experts = _load_experts(hospital, question, context.message.tensors)
    tested = question.scored == "test"
    rows = (
        rows_of(cohort, hospital.device, start.target, scratch=hospital.scratch())["test"]
        if tested
        else all_rows(cohort, hospital.device, start.target, scratch=hospital.scratch())
    )
    if not len(rows.y):
        raise Refused("no_test_patients")
    if tuple(rows.x.shape[1:]) != start.task.inputs:
        raise Refused("malformed_route") from ValueError(f"the models are for images {start.task.inputs}, not for ours")
    try:
        if isinstance(how, FineTuned):
            came = Came(_fine_tune(hospital, start, cohort, list(experts.values())[-1], how, seed, tested=tested))
        else:
            came = (
                _match_model(question, how, list(experts.values())[-1], start.task, rows)
                if isinstance(how, Matched)
                else _apply_way(how, experts, rows.x, start.task, seed)
            )
    except ValueError as error:
        raise Refused("malformed_route") from error
    changed = came.adapted is not None or isinstance(how, FineTuned | Matched)
    before = list(experts.values())[-1] if changed else None
    scores = _score_model(hospital, start.task, cohort, rows, came.made, copies, before)
    told_of = adaptation_facts(question, came.adapted, came.layers)
    kept_here = to_bytes(Message({**scores.patient_scores, **came.mixed}, told_of))
    DiskFolder(hospital.root / "scores").write(file_of(call.run), kept_here)
    how_seen: dict[Split, str] = dict.fromkeys(SPLITS, "a model was adapted to their images")
    if tested:
        how_seen = {"test": "a model was adapted to their images, or scored on them"}
    if isinstance(how, FineTuned):
        how_seen |= {"train": "a model was fine-tuned on them"}
    seen = looked_at(question.cohort, how_seen)
    return Done(read_reply(ROUTE, Message(scores.tensors)), describe_event(NON_PRIVATE), Message({}, seen))


def _check_willing(hospital: Hospital, call: Call) -> None:
    """Raises: Refused: `policy_inside`: the patients whom it would score trained the models; or with the code of
    `privacy.release.gate.find_unaffordable`.
    """
    if list_paths(hospital.root, f"conversations/*/*/{INSIDE}*"):
        raise Refused("policy_inside") from ValueError("this hospital takes part in the federation: it is not outside")
    check_affordable(hospital, [NON_PRIVATE], call)


def _load_experts(hospital: Hospital, question: Route, tensors: Params) -> tuple[Opening, dict[str, nn.Module]]:
    """The opening of the first model, and all models in order, each in the network of its method."""
    experts: dict[str, nn.Module] = {}
    openings = [
        value for value in (value_or_none(question.personal), value_or_none(question.shared)) if value is not None
    ]
    starts, names = (
        [parse_opening(hospital, {**opening_facts, "cohort": question.cohort}) for opening_facts in openings],
        question.experts,
    )
    if not starts or len(set(names)) < len(names):
        raise Refused("malformed_route") from ValueError("no openings, or two models of one name")
    try:
        for place, name in enumerate(names):
            start = starts[-1] if place == len(names) - 1 else starts[0]
            network = start.algorithm.network(start.task)
            experts[name] = loaded(network, section(tensors, name)).to(hospital.device).eval()
    except (RuntimeError, KeyError, ValueError) as error:
        raise Refused("malformed_route") from error
    return starts[0], experts


Made = nn.Module | Tensor | Sequence[nn.Module]
"""One network; or predictions (n, classes, *spatial); or networks whose scores are averaged."""


class Came(NamedTuple):
    """The result of a way. adapted: details of the adaptation, if there was one. layers, mixed: names of mixed layers,
    and their coefficients, as `pipelines.hospital.adaptation` stores them.
    """

    made: Made
    adapted: Adapted | None = None
    layers: tuple[str, ...] = ()
    mixed: Mapping[str, Tensor] = MappingProxyType({})


def _apply_way(how: How, experts: Mapping[str, nn.Module], x: Tensor, task: Task, seed: int) -> Came:
    """Apply a way to the models and all images. Models of patches are adapted to the windows that cover the images.

    Raises:
        ValueError: models and way do not fit together.
    """
    models = list(experts.values())
    if task.patch is not None and (text := find_patch_problem(how)):
        raise ValueError(text)
    if how.name == "average":
        return Came(models)
    if how.name == "ensemble":
        return Came(ensemble(models))
    if how.name == "as_trained":
        return Came(models[-1])
    if how.name == "tent":
        module, adapted = tent(models[-1], cut_windows(x, task.patch), how, kind=task.kind, seed=seed)
        return Came(module if adapted.probabilities is None else adapted.probabilities, adapted)
    if how.name == "ttt":
        if not isinstance(models[-1], RotationNetwork):
            raise ValueError("ttt needs a network with a head for turns, of fedavg_turns")
        return Came(*train_at_test(models[-1], x, how, kind=task.kind, seed=seed))
    if isinstance(how, FineTuned | Matched):
        raise ValueError(f"{how.name} needs more than images and models, which adaptation does not see")
    pieces = cut_windows(x, task.patch)
    network, adapted = routed(models, pieces, how, kind=task.kind, seed=seed)
    if not isinstance(network, Routed):
        return Came(network, adapted)
    by_piece = torch.cat([coefficients(network, part) for part in torch.split(pieces, how.batch)])
    by_image = by_piece.reshape(len(x), -1, *by_piece.shape[1:]).mean(dim=1)
    made = network if adapted.probabilities is None else adapted.probabilities
    return Came(made, adapted, tuple(network.layers), summarize_coefficients(by_image))


def _match_model(question: Route, how: Matched, model: nn.Module, task: Task, rows: Rows) -> Came:
    """The shared model, matched to this hospital's images. Raises: ValueError: the moments are missing, or of another
    network.
    """
    mean, square = value_or_none(question.channel_mean), value_or_none(question.channel_square)
    if mean is None or square is None:
        raise ValueError("matched needs the moments of the model's channels, and none came")
    moments = ChannelMoments(mean.double().cpu(), square.double().cpu(), value_or_none(question.channel_noise) or 0.0)
    pieces, norms = task.cut_rows(rows), order_norms(model, task.trained_inputs, how.norms)
    return Came(match_channels(model, moments, pieces.x, pieces.patient, norms))


def _fine_tune(
    hospital: Hospital,
    start: Opening,
    cohort: Cohort,
    model: nn.Module,
    how: FineTuned,
    seed: int,
    *,
    tested: bool,
) -> nn.Module:
    """The shared model, trained on with this hospital's labels. Raises: ValueError: patients whom it would be scored on
    are among those, there is nobody to train on, or training is private.
    """
    if not tested or start.protection is not None:
        raise ValueError("fine_tuned trains on some of the patients, without noise: score test patients, not privately")
    access = data_access(hospital, cohort, start, derive_seed(seed, "draws"))
    if not access.size("train"):
        raise ValueError("fine_tuned needs training patients, and this hospital has none")
    with use_seed(seed):
        return fine_tuned(Site(hospital.name, start.task, start.work, restrict_access(access)), model, how.tuning())


def _score_model(
    hospital: Hospital,
    task: Task,
    cohort: Cohort,
    rows: Rows,
    made: Made,
    copies: int,
    before: nn.Module | None,
) -> ReleasedScores:
    """Scores of what a way made. before: the model before adaptation, for pictures."""
    if task.kind == "segmentation":
        masks = _predict(task, made, rows.x)
        scores, mean = score_masks(hospital, cohort, rows, masks, task.classes, copies)
        if len(masks) > 1:
            return scores
        shown = select_masks_to_show(cohort, rows, masks[0].classes, mean, before, task)
        return scores._replace(patient_scores={**scores.patient_scores, **shown})
    if not isinstance(made, nn.Module | Tensor):
        raise Refused("malformed_route") from ValueError("an average of scores is for masks; say ensemble")
    probabilities = task.probabilities(made, rows.x) if isinstance(made, nn.Module) else made
    return score_labels(hospital, rows, probabilities, copies, ordered=task.ordered)


def _predict(task: Task, made: Made, x: Tensor) -> list[Masks]:
    if isinstance(made, Tensor):
        return [masks_of_probabilities(made)]
    return [predict_masks(task, model, x) for model in ([made] if isinstance(made, nn.Module) else made)]
