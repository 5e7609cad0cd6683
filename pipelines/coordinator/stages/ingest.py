"""Each hospital turns its files into a cohort and returns counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from evaluation.classes import compare_classes, describe_single_class, describe_strange_counting
from pipelines.coordinator.artifacts import SITES, Counts, write_replies
from pipelines.coordinator.permissions import check_permitted, permissions_from
from pipelines.coordinator.spaces import find_cohort_complaint
from pipelines.coordinator.witness import build_surveys
from pipelines.coordinator.world import World
from pipelines.data.images import Features, Target
from pipelines.data.regions import pack_regions
from pipelines.loader.validation import to_plain
from pipelines.requests.ingest import INGEST, Counted, CountedOnce, Ingest
from pipelines.requests.moments import MOMENTS, ReadFeatures
from pipelines.requests.survey import SURVEY
from pipelines.requests.writing import to_facts
from pipelines.runs.progress import make_counter, print_remark, show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.checks.partition import find_partition_differences
from pipelines.settings.config import Config
from pipelines.settings.privacy import PatientLevel
from pipelines.settings.task import Segmentation
from privacy.message import Json
from privacy.release.form import ABSENT, Absent, value_or_none
from privacy.release.policy import largest_delta

VERSION = 14


class UnusableCohort(RuntimeError):
    """A site rejected more studies than its `max_rejected` allows, or has no training or no test patients."""


def settings(world: World) -> Json:
    """Settings that change the result, besides the hospitals' files and settings, which `outside` covers."""
    grids: dict[str, Json] = {
        site: to_plain(world.config.images_of(site))
        for site, settings_of_site in world.config.sites.items()
        if settings_of_site.images
    }
    return {**to_facts(_build_question(world.config)), **({"grids": grids} if grids else {})}


def _build_question(config: Config) -> Ingest:
    """How every hospital reads its files: which masks it needs, or the names of its labels."""
    task = config.task
    target: Target | Absent
    classes: list[str] | Absent
    if task.target is None:
        target, classes = ABSENT, list(task.classes) or ABSENT
    else:
        target, classes = task.target, list(task.names[1:]) if task.target == "masks" else []
    return Ingest(
        images=config.images,
        split=config.split,
        seed=config.seed,
        independent=config.independent,
        target=target,
        classes=classes,
        number=ABSENT if task.number is None else task.number,
        findings=list(task.findings) or ABSENT,
        unlabelled=ABSENT if config.train.methods else True,
        regions=pack_regions(task.regions) if isinstance(task, Segmentation) and task.regions else ABSENT,
    )


def outside(world: World) -> Mapping[str, str]:
    """Each site's digest of its file names, sizes, times and settings; no pixel is read."""
    replies = world.ask_all(SURVEY, world.run(SURVEY.name), build_surveys(world))
    if not world.simulation:  # fails early if a hospital's policy refuses a needed request
        check_permitted(world.config, {site: permissions_from(reply) for site, reply in replies.items()})
    return {site: reply.digest for site, reply in replies.items()}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request `ingest` from every site; write the replies (counts by split and by reason of rejection)."""
    return {"sites": {site: to_facts(each) for site, each in ingest_sites(world, out).items()}}


def ingest_sites(world: World, out: Path) -> dict[str, Counts]:
    """Have every site read its files; write what it counted. Raises: UnusableCohort."""
    counts = _count_patients(world)
    write_replies(out / SITES, counts)
    problems = [text for site, each in sorted(counts.items()) for text in _find_cohort_problems(world, site, each)]
    problems += [
        text
        for site, each in sorted(counts.items())
        for text in _find_delta_problems(world.config, site, each.patients)
    ]
    problems += find_partition_differences(world.config.sites, partition_digests(counts))
    if problems:
        raise UnusableCohort("; ".join(problems))
    return counts


def _count_patients(world: World) -> dict[str, Counts]:
    """Have every site read its files, and return what it counted; odd classes are said aloud."""
    about: dict[str, Json] = {"asked": settings(world), "outside": dict(outside(world))}
    name, question = world.run(world.name_question("ingest", "ingest", VERSION, about)), _build_question(world.config)
    sites = world.engine.sites
    with show_progress("ingest") as step:
        step(0, 2 * len(sites))
        question = _with_scale(world, name, question, make_counter(step, 2 * len(sites)))
        report_site = make_counter(step, 2 * len(sites), len(sites))
        replies = world.ask_each(
            INGEST,
            dict.fromkeys(sites, name),
            {site: replace(question, images=world.config.images_of(site)) for site in sites},
            report_site=report_site,
        )
        for sentence in _describe_odd_classes(world.config, replies):
            print_remark(sentence)
    return {site: replies[site] for site in sites}


def partition_digests(counts: Mapping[str, Counts]) -> dict[str, str | None]:
    """Of partitioned sources, each hospital's digest of the partition."""
    return {site: None if isinstance(c, CountedOnce) else value_or_none(c.dealing) for site, c in counts.items()}


def _with_scale(world: World, name: str, question: Ingest, report_site: Callable[[str], None]) -> Ingest:
    """The question with the summed moments of all sites' training features, if features are normalized by them."""
    images = world.config.images
    if not (isinstance(images, Features) and images.normalize == "pooled"):
        return question
    sites = world.engine.sites
    first = ReadFeatures(
        images=images,
        split=question.split,
        seed=question.seed,
        independent=question.independent,
        target=question.target,
        classes=question.classes,
        number=question.number,
        findings=question.findings,
    )
    replies = world.ask_each(MOMENTS, dict.fromkeys(sites, name), world.same_for_all(first), report_site=report_site)
    parts = [replies[site] for site in sites]
    return replace(
        question,
        count=torch.stack([part.count for part in parts]).sum(dim=0),
        total=torch.stack([part.total for part in parts]).sum(dim=0),
        squares=torch.stack([part.squares for part in parts]).sum(dim=0),
    )


def _find_cohort_problems(world: World, site: str, counts: Counts) -> list[str]:
    """Why a hospital's cohort cannot be used: too many rejections, or a split without patients."""
    where = world.root / "sites" / site / "cohorts" / counts.cohort / "rejected.json"
    if isinstance(counts, CountedOnce):
        return _find_count_problems(site, counts, _list_needed_splits(world.config))
    if counts.too_many_rejected:
        used = counts.studies if isinstance(counts.source_studies, Absent) else counts.source_studies
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(counts.rejected_by_reason.items()))
        return [
            f"{site}: {counts.rejected} of {counts.rejected + used} studies were rejected, and max_rejected allows "
            f"{counts.max_rejected:.0%}: {reasons}. Repair or exclude them, or raise max_rejected; study by study: "
            f"{where}, and in full in linkage.json of that site"
        ]
    return [
        f"{site}: no patient in the {split} split, of {counts.patients} in all ({counts.rejected} studies "
        f"rejected, see {where}); give it more patients, another split, or leave the site out"
        for split in _list_needed_splits(world.config)
        if counts.splits[split]["patients"] == 0
    ]


def _describe_odd_classes(config: Config, counts: Mapping[str, Counts]) -> list[str]:
    """What is odd about the hospitals' classes, of those that count images exactly."""
    if config.task.kind != "classification" or not config.train.methods:
        return []
    exact = {site: each for site, each in counts.items() if isinstance(each, Counted)}
    images = {site: _images_by_class(value_or_none(c.classes), c.images, c.positives) for site, c in exact.items()}
    names = config.task.names
    bad_labels = {site: each.rejected_by_reason.get("bad_label", 0) for site, each in exact.items()}
    sentences = [
        compare_classes(images, names) if len(images) == len(counts) else "",
        describe_strange_counting(images, names, bad_labels),
    ]
    for site, each in exact.items():
        by_split = {
            split: _images_by_class(part.get("classes"), part["images"], part["positives"])
            for split, part in each.splits.items()
        }
        missing_class = describe_single_class(by_split, names)
        sentences.append(f"{site} {missing_class}" if missing_class else "")
    return [text for text in sentences if text]


def _images_by_class(classes: Sequence[int] | None, images: int, positives: int) -> list[int]:
    """Images of each class; of negative and positive ones where classes have no names."""
    return list(classes or (images - positives, positives))


def _list_needed_splits(config: Config) -> tuple[str, ...]:
    """The splits that must have patients: without models nobody is tested."""
    return ("train", "test") if config.train.methods else ("train",)


def _find_count_problems(site: str, counts: CountedOnce, splits: Sequence[str]) -> list[str]:
    """What a hospital with a budget will refuse because of its released counts, found before it is asked."""
    problems, patients = [], {split: counts.splits[split]["patients"] for split in splits}
    if patients["train"] < max(1, counts.min_patients):
        problems.append(
            f"{site}: its policy asks for {counts.min_patients} training patients (min_patients), and its released "
            f"counts say {patients['train']}; leave the site out, or let it gather more patients and count anew"
        )
    if not patients.get("test", 1):
        problems.append(f"{site}: its released counts say no patient in the test split; give it another split")
    return problems


def _find_delta_problems(config: Config, site: str, patients: int) -> list[str]:
    """A problem for every delta that is too large for the number of patients: a hospital with a budget refuses it."""
    deltas = {"privacy.delta": config.privacy.delta} if isinstance(config.privacy, PatientLevel) else {}
    if config.harmonize is not None:
        score, synthesis = config.harmonize.score, config.harmonize.synthesis
        deltas |= {"harmonize.score.delta": score.delta} if score.release == "dp" else {}
        deltas |= {"harmonize.synthesis.delta": float(getattr(synthesis, "delta", 0.0))} if synthesis.private else {}
    largest = largest_delta(patients)
    return [
        f"{site}: {name} is {delta:g}, and its {patients} patients allow {largest:.2g} at most (1 / (10 x "
        "patients)): above it a record may be lost to the failure that delta allows for; say 1e-5"
        for name, delta in deltas.items()
        if delta > largest
    ]


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its cohort unchanged."""
    return find_cohort_complaint(world, artifact / SITES)


STAGE = Stage("ingest", VERSION, (), settings, run, outside=outside, intact=intact)
