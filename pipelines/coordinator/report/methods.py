"""Methods on the coordinator's page: costs, the models that hospitals can use, and attacks on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from evaluation.attacks import InversionRow, MembershipRow
from evaluation.records import MethodCost, Model, Outlier
from evaluation.wording import format_count, format_list
from federation.algorithm import is_averaging
from federation.buffering import USUAL, can_merge_late
from federation.local_steps import local_steps
from federation.merging import NormBounded
from federation.notices import FEWEST
from federation.rehearsal import initial_parameters
from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.audits import InversionAttempt, MembershipAttempt
from pipelines.coordinator.trained import TrainedMethod
from pipelines.coordinator.world import World
from pipelines.hospital.inversion import ATTACKS, MEAN
from pipelines.loader.overrides import override_settings
from pipelines.models.file import READY, ended_in
from pipelines.requests.report import Reported
from pipelines.settings.config import Config
from privacy.message import Json
from privacy.release.gate import BUDGET

FIGURES_AT_HOSPITAL = "computed, and kept on the hospital's own page: it has no noise"
PICTURES_AT_HOSPITAL = (
    "tried; figures and pictures are kept on the hospital's own page, report.html in its folder: they have no noise"
)


def compute_method_costs(
    world: World, trained: Sequence[TrainedMethod], replies: Mapping[str, Reported], reference: str | None
) -> Iterator[MethodCost]:
    """Cost of each method, by the sites' ledgers; bytes are those of the site that sent most."""
    lowest = next((lowest_loss(result.totals) for result in trained if result.label == reference), None)
    for result in trained:
        sent = [reply.sent.get(result.train_run, 0) for reply in replies.values()]
        received = 0 if result.name == CENTRAL else result.received  # the central baseline sends sites nothing
        yield MethodCost(
            result.label,
            result.parameters,
            max(sent, default=0),
            received,
            result.rounds,
            total=sum(sent) + received * len(sent),
            reached=None if lowest is None else first_round_at(result.totals, result.rounds, lowest),
            gradients=work_of(world.config, result.label),
            lowest=math.nan if (lowest_of_method := lowest_loss(result.totals)) is None else lowest_of_method,
        )


def work_of(config: Config, label: str) -> str:
    """Of how many mini-batches, or epochs, a site takes gradients in a round of this method; empty: pooled training."""
    algorithm, task = config.train.methods[label], config.task_of(label)
    if algorithm.name == CENTRAL:
        return ""
    work = override_settings(config.train.work, config.train.method_work.get(label, {}))
    return str(local_steps(algorithm, task, work, initial_parameters(algorithm, task, seed=config.seed)))


def lowest_loss(totals: Mapping[str, float]) -> float | None:
    """The lowest validation loss over all sites of any round; None if there is none. totals: round -> loss."""
    return min((float(loss) for loss in totals.values() if math.isfinite(loss)), default=None)


def first_round_at(totals: Mapping[str, float], rounds: int, lowest: float) -> int | None:
    """The first round of a method whose aggregated validation loss is at most `lowest`."""
    return next((number for number in range(1, rounds + 1) if totals.get(str(number), math.inf) <= lowest), None)


def list_models(world: World, trained: Sequence[TrainedMethod], replies: Mapping[str, Reported]) -> tuple[Model, ...]:
    """Every method and variant of every hospital. replies: of each hospital to `report`."""
    rows, method_of = [], {label: variant.of for label, variant in world.config.evaluate.variants.items()}
    by_label = {result.label: result for result in trained}
    for site in sorted(replies):
        folder = str(world.root / "sites" / site / READY) if world.simulation else READY
        losses = {result.label: loss_at(result, site, world.config.evaluate.checkpoint) for result in trained}
        for label in (*losses, *world.config.evaluate.variants):
            file = f"{folder}/{label}.safetensors" if label in replies[site].ready else ""
            result = by_label.get(method_of.get(label, label))
            ending = "" if result is None else describe_early_end(result.missing, result.rounds, site)
            rows.append(Model(site, label, losses.get(label, math.nan), file, ending))
    return tuple(rows)


def describe_early_end(missing: Sequence[tuple[int, str, str]], rounds: int, site: str) -> str:
    """Why a site's training of a method ended before its last round, in words; empty: it did not. missing: rounds that
    a site did not take part in, with its code.
    """
    refused = [number for number, name, code in missing if (name, code) == (site, BUDGET)]
    trained: dict[str, Json] = {"rounds_trained": min(refused, default=1) - 1, "rounds": rounds, "ended": BUDGET}
    return ended_in(trained) if refused else ""


def loss_at(result: TrainedMethod, site: str, checkpoint: str) -> float:
    """The validation loss at a hospital of the model that it uses; NaN if it released none."""
    series = {int(number): float(v) for number, v in result.losses.get(site, {}).items() if v is not None}
    finite = {number: loss for number, loss in series.items() if math.isfinite(loss)}
    if not finite or checkpoint == "average":  # an average is no round's model, and nobody measured its loss
        return math.nan
    if checkpoint == "local":
        return min(finite.values())
    number = result.best if checkpoint == "global" else result.rounds
    return math.nan if number is None else finite.get(number, math.nan)


def spaces_by_label(world: World, trained: Sequence[TrainedMethod]) -> dict[str, str]:
    """The image space in which each method, and so each of its variants, trains."""
    space_of_method = {result.label: result.space for result in trained}
    return space_of_method | {
        label: space_of_method[variant.of] for label, variant in world.config.evaluate.variants.items()
    }


def build_membership_row(attempt: MembershipAttempt) -> MembershipRow:
    """The result of a membership attack, or a note that the hospital kept it on its own page."""
    figures = attempt.found
    if figures is None:
        nan, note = float("nan"), f"not made: {attempt.refused}" if attempt.refused else FIGURES_AT_HOSPITAL
        return MembershipRow(attempt.site, attempt.method, nan, nan, nan, nan, 0, 0, note)
    numbers = (figures.auc, figures.low, figures.high, figures.control_auc, figures.members, figures.others)
    return MembershipRow(attempt.site, attempt.method, *numbers, figures.reason or "")


def build_inversion_rows(attempt: InversionAttempt) -> Iterator[InversionRow]:
    """A row per inversion attack, beside the mean image as its baseline."""
    site, method, figures, nan = attempt.site, attempt.method, attempt.found, math.nan
    if figures is None or not figures.attacks:
        reason = f"not made: {attempt.refused}" if attempt.refused else PICTURES_AT_HOSPITAL
        note = reason if figures is None else figures.reason
        yield InversionRow(site, method, "", nan, nan, nan, nan, 0, 0, note)
        return
    low = figures.attacks[MEAN]
    for attack in (name for name in ATTACKS if name in figures.attacks and name != MEAN):
        mean = figures.attacks[attack]
        yield InversionRow(site, method, attack, mean.psnr, mean.ssim, low.psnr, low.ssim, mean.better, figures.images)


def list_outliers(world: World, trained: Sequence[TrainedMethod]) -> Iterator[Outlier]:
    """What stands out, by method and hospital."""
    for method in trained:
        rule = world.config.train.rule_of(method.label).name
        for outlier in method.outliers or ():
            yield Outlier(method.label, outlier.site, rule, outlier.rounds, outlier.times, outlier.opposed, outlier.n)


def describe_merging(world: World, trained: Sequence[TrainedMethod]) -> str:
    """By which rules, and whether a single update can be judged; empty where nothing is trained."""
    train, hospitals = world.config.train, len(world.engine.sites)
    if not trained:
        return ""
    if train.secure_sum:
        every_rule = [train.rule_of(label) for label in train.methods]
        bounds = sorted({f"{rule.bound:g}" for rule in every_rule if isinstance(rule, NormBounded)})
        unseen = "Only sums over hospitals were seen: a single update cannot be judged, and a false one is not noticed."
        bounded = (
            f" Each hospital shortens its own update to a norm of {format_list(bounds)}, which limits honest mistakes "
            "and binds no attacker."
        )
        return unseen + bounded * bool(bounds)
    rules = {label: train.rule_of(label).name for label, method in train.methods.items() if is_averaging(method)}
    by = {name: [label for label in rules if rules[label] == name] for name in dict.fromkeys(rules.values())}
    how = "; ".join(f"{name} ({format_list(labels)})" if len(by) > 1 else name for name, labels in by.items())
    judged = "No hospital's update stands out."
    if hospitals < FEWEST:
        judged = f"With fewer than {FEWEST} hospitals nobody can judge whose update is wrong."
    elif any(method.outliers for method in trained):
        judged = "What stands out is at the top of this page."
    packed = "Of replies the difference crosses, in eight bits a number (train.upload). " * (train.upload is not None)
    late = f"{describe_buffer(world)}{packed}"
    return f"Replies are merged by {how} (train.merge). {late}{judged}" if how else f"{packed}{judged}"


def describe_buffer(world: World) -> str:
    """Who is waited for in buffered merging, and how often each hospital trains, with a blank behind; empty where each
    round waits for all.
    """
    late = [label for label, method in world.config.train.methods.items() if can_merge_late(method)]
    schedule, sites = world.config.train.schedule, world.engine.sites
    merges = schedule.plan(sites)
    if not merges or not late:
        return ""
    updates = schedule.count_updates(sites)
    counts = sorted(set(updates.values()))
    who = f"every hospital trains {counts[0]} times"
    if len(counts) > 1:
        fewest = [site for site in sites if updates[site] == counts[0]]
        who = f"hospitals train {counts[0]} ({format_list(fewest)}) to {counts[-1]} times"
    slowest = schedule.rounds * max(schedule.durations.get(site, USUAL) for site in sites)
    return (
        f"A merge waits for {format_count(schedule.buffer or 0, 'hospital', 'hospitals')} and no other "
        f"(schedule.buffer, of {format_list(late)}): "
        f"{who}, and by the declared durations {schedule.rounds} merges end at {merges[-1].clock:g}, where "
        f"{schedule.rounds} rounds of everybody would end at {slowest:g}. "
    )
