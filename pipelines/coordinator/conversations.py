"""The start of a method's training: the settings sent to each hospital, and the pooled site of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from federation.descent import Rate
from federation.engine import Engine, InProcess
from federation.membership import is_separable
from federation.merging import NormBounded
from federation.origins import code_identity
from federation.rounds import method_schedule
from federation.task import IGNORED
from federation.upload import Int8
from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.spaces import Cohorts, SiteCohort
from pipelines.coordinator.world import World
from pipelines.data.cohort import Cohort, to_message
from pipelines.data.images import AnyImages
from pipelines.data.label_numbers import LabelRange
from pipelines.data.regions import pack_regions
from pipelines.hospital.hospital import COHORT, SPLITS, Hospital, read_cohort_file
from pipelines.hospital.worker import make_worker
from pipelines.loader.overrides import override_settings
from pipelines.loader.validation import to_plain
from pipelines.requests.pool import POOL, Pool, Pooled
from pipelines.requests.train import Introduce
from pipelines.requests.writing import to_facts
from pipelines.runs.store import DiskFolder, digest_json, short_digest
from pipelines.settings.config import Config, select_device
from pipelines.settings.task import AnyTask, Classification, Segmentation
from privacy.message import Json, as_mapping, to_bytes
from privacy.release.form import ABSENT
from privacy.release.gate import Refused

if TYPE_CHECKING:
    from pipelines.coordinator.spending import Plan


def build_opening(world: World, label: str, site: str, cohort: str) -> dict[str, Json]:
    """The settings of a run that a site needs."""
    config = world.config
    task, method = config.task_of(label, None if site == CENTRAL else site), config.train.methods[label]
    work = override_settings(config.train.work, config.train.method_work.get(label, {}))
    changes = any(each.rate != Rate() for each in (work, *(config.work(label, name) for name in config.sites)))
    upload, has_labels = choose_upload(config, label), config.task.target is None
    is_hidden, rule = is_hidden_in_sums(config, label), config.train.rule_of(label)
    plan = _plan_protection(config, label, site)
    opening = Introduce(
        label=label,
        algorithm=_describe(method),
        model=_describe(task.model),
        inputs=[*task.inputs],
        classes=task.classes,
        shared=ABSENT if task.shared is None else [*task.shared],
        target=ABSENT if config.task.target is None else "masks" if site == CENTRAL else config.task.target,
        ordered=True if has_labels and config.task.ordered else ABSENT,
        findings=True if has_labels and config.task.findings else ABSENT,
        work=_describe(work),
        rounds=method_schedule(method, config.train.schedule).rounds if changes else ABSENT,
        averaged=True if is_averaged(config, label) else ABSENT,
        figures=True if config.evaluate.rounds else ABSENT,
        seed=config.seed,
        cohort=cohort,
        privacy=None if plan is None else _describe(plan.protection),
        evaluation_noise=ABSENT if plan is None else plan.evaluation_noise,
        secure_sum=True if is_hidden else ABSENT,
        bound=rule.bound if is_hidden and isinstance(rule, NormBounded) else ABSENT,
        upload=ABSENT if upload is None else _describe(upload),
    )
    return to_facts(opening)


def _describe(settings: object) -> dict[str, Any]:
    """A group of settings as JSON."""
    return dict(as_mapping(to_plain(settings)))


def is_averaged(config: Config, label: str) -> bool:
    """Whether hospitals are asked to keep the average of a method's models over rounds. Of one that hospitals may leave
    they keep none: earlier models hold what who left has said.
    """
    method = config.train.methods[label]
    many = method_schedule(method, config.train.schedule).rounds > 1
    return many and not is_separable(method) and config.evaluate.is_averaged(label)


def is_hidden_in_sums(config: Config, label: str) -> bool:
    """Whether a method's replies are hidden in sums; the pooled baseline has one reply, and no sum to hide it in."""
    return config.train.secure_sum and config.train.methods[label].name != CENTRAL


def choose_upload(config: Config, label: str) -> Int8 | None:
    """How replies of a method are packed; None: as they are, and of the central baseline, which sends nothing."""
    return None if config.train.methods[label].name == CENTRAL else config.train.upload


def _plan_protection(config: Config, label: str, site: str) -> Plan | None:
    """The noise and clipping for this site's patients; the hospital computes their cost itself."""
    if config.privacy == "none":
        return None
    from pipelines.coordinator.spending import plan_method  # slow to import; only private runs need it

    return plan_method(config, label, site)


def task_facts(config: Config) -> dict[str, Json]:
    """The task, and packages that training uses; empty for labels 0 and 1 without such packages, so that digests of
    older runs stay the same. Of ordered classes also how their order is learnt, which older runs did not.
    """
    task: dict[str, Json] = {} if config.task == Classification() else {"task": to_plain(config.task)}
    task |= {"order": "ranked probability"} if config.task.ordered else {}
    return task | code_identity(config.train, config.model)


def pooled_engine(world: World, cohorts: Cohorts) -> tuple[Engine, Cohorts]:
    """A site with all hospitals' images, in this process. `Config` allows it only with `pooling: allowed`."""
    parts: dict[str, Json] = {site: [cohorts[site].cohort, cohorts[site].sha256] for site in sorted(cohorts)}
    name = short_digest(digest_json({**parts, **task_facts(world.config)}))
    hospital = Hospital(CENTRAL, world.root / "pooled", None, world.now, device=select_device(world.config.device))
    try:
        read_cohort_file(hospital.cohort_folder(name) / COHORT)
    except Refused:  # not pooled yet, or damaged
        task = world.config.task
        questions = {
            site: _build_pool_question(world.config, site, cohorts[site].cohort) for site in world.engine.sites
        }
        classes = task.classes if task.kind == "classification" else ()
        pooled = world.ask_all(POOL, world.run(f"pool-{name}"), questions)
        labels = classes, task.number, task.findings
        write_pooled_cohort(hospital, name, pooled, world.config.images, *labels, of_masks=describe_regions(task))
    return InProcess({CENTRAL: make_worker(hospital)}), {CENTRAL: SiteCohort(name, name)}


def _build_pool_question(config: Config, site: str, cohort: str) -> Pool:
    """What a site is asked for the central baseline."""
    target = config.task.target
    if target is None:
        return Pool(cohort=cohort, ordered=config.task.ordered or ABSENT)
    return Pool(cohort=cohort, target="masks" if site == CENTRAL else target)


def describe_regions(task: AnyTask) -> dict[str, Json]:
    """What a recipe says of masks with regions; empty for all other tasks, so that cohorts of older runs stay."""
    if not isinstance(task, Segmentation) or not task.regions:
        return {}
    regions: list[Json] = [[*each] for each in pack_regions(task.regions)]
    return {"classes": [*task.classes], "regions": regions}


def write_pooled_cohort(
    hospital: Hospital,
    name: str,
    pooled: Mapping[str, Pooled],
    seen: AnyImages,
    classes: Sequence[str] = (),
    number: LabelRange | None = None,
    findings: Sequence[str] = (),
    *,
    of_masks: Mapping[str, Json] | None = None,
) -> None:
    """Write the pooled training and validation images as a cohort of `hospital`. pooled: replies to `pool`, by site.
    seen: what the images are, which their views must know. classes: names of the labels, if not negative and positive.
    number: the range of labels that are numbers. findings: names of several. of_masks: what the recipe says of masks.

    Masks, where they are what is learnt, become the cohort's label maps, whatever they were at the sites.
    """
    offset = 0
    parts: dict[str, list[torch.Tensor]] = {"x": [], "y": [], "patient": [], "split": []}
    for site in sorted(pooled):
        tensors = {**pooled[site].images, **pooled[site].labels}
        last = offset
        for split in ("train", "validation"):
            patient = tensors[f"{split}/patient"] + offset
            last = max(last, int(patient.max()) + 1) if len(patient) else last
            parts["x"].append(tensors[f"{split}/x"])
            parts["y"].append(tensors[f"{split}/y"])
            parts["patient"].append(patient)
            parts["split"].append(torch.full((len(patient),), SPLITS.index(split), dtype=torch.int8))
        offset = last
    images = torch.cat(parts["x"])
    truth = torch.cat(parts["y"])
    empty = torch.zeros(len(images), 0, dtype=torch.uint8)
    cohort = Cohort(
        images=images,
        labels=truth if truth.dim() == 1 else ((truth > 0) & (truth != IGNORED)).flatten(1).any(dim=1).long(),
        patient=torch.cat(parts["patient"]),
        position=torch.zeros(len(images)),
        lesion=empty,
        gland=empty.clone(),
        mask=empty.clone() if truth.dim() == 1 else truth.to(torch.uint8),
        split=torch.cat(parts["split"]),
        patients=tuple(f"pooled-{number}" for number in range(offset)),
        recipe={"images": to_plain(seen), **_name_labels(classes, number, findings), **(of_masks or {})},
    )
    DiskFolder(hospital.cohort_folder(name)).write(COHORT, to_bytes(to_message(cohort)))


def _name_labels(classes: Sequence[str], number: LabelRange | None, findings: Sequence[str]) -> dict[str, Json]:
    """What a pooled cohort's recipe says of its labels."""
    if number is not None:
        return {"number": number.to_json()}
    return {"findings": [*findings]} if findings else {"labels": [*classes]} if classes else {}
