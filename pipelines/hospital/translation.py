"""Translate a hospital's images into a space: `translate`. The images stay; only the new cohort's name, its quality and
whether the hospital uses it leave.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from torch import Tensor

from federation.randomness import derive_seed
from harmonize.networks import Inputs
from harmonize.quality import Quality, measure_quality
from harmonize.randomized import Randomized
from harmonize.scale import Progress, Scale
from harmonize.translation import SiteImages, Translator, fit_translator, translate_back, translate_each_patient
from harmonize.veto import HARMLESS, Limits, describe_vetoes, list_unknown_figures, list_vetoes
from pipelines.data.cohort import Cohort
from pipelines.data.images import IMAGES
from pipelines.hospital.beginnings import TRANSLATION
from pipelines.hospital.files import files_of
from pipelines.hospital.harmonization import class_sides, cohort_in, make_progress
from pipelines.hospital.hospital import COHORT, SPLITS, Context, Done, Hospital, keyed_digest, write_cohort_file
from pipelines.hospital.kept import QUALITIES, REJECTED, SPLIT, digest_of, split_of
from pipelines.hospital.points import write_points
from pipelines.hospital.public_networks import learn_translation as public_translation
from pipelines.hospital.synthesis import inputs_of
from pipelines.hospital.withdrawn import looked_at
from pipelines.loader.validation import to_plain
from pipelines.models.translator_file import FOLDER, TRANSLATORS, write_translator
from pipelines.requests.translate import Translate, Translated
from pipelines.runs.progress import show_progress
from pipelines.runs.store import DiskFolder, short_digest
from pipelines.settings.harmonization import AnySpace, Exported, Oracle
from privacy.dp.access import Split
from privacy.dp.events import NON_PRIVATE, NOTHING, describe_event
from privacy.message import Call, Json, Message, Params, to_bytes
from privacy.release.gate import Refused

FITTED = "its translator was fitted on them"
JUDGED = "its figures count them"
LEAST_SHARED, MOST_SHARED = 4, 20_000
SEED = 0  # of random directions and folds in quality control: the same for all spaces, so that figures compare
ENOUGH = 60  # validation images; with fewer, quality control uses training patients too


class How(NamedTuple):
    """How images are translated: the question, under this hospital's own veto. question: a digest of what shapes it,
    with the shared images. unlabelled: labels do not shape the translator; quality control still counts them here.
    """

    translator: AnySpace
    limits: Limits
    scale: Scale
    seed: int
    space: str
    scanner: str
    is_target: bool
    private: bool
    question: str
    unlabelled: bool


class Brought(NamedTuple):
    """images: of the whole cohort, translated, in its unit. cycled: in [-1, 1], translated there and back, if possible.
    params: the translator's tensors."""

    images: Tensor
    cycled: Tensor | None = None
    params: Params | None = None


class Made(NamedTuple):
    """A translated cohort. reasons: of the veto. judged: whether its quality was measured; not under a budget."""

    cohort: str
    reasons: tuple[str, ...]
    run: str
    judged: bool


def translate(hospital: Hospital, context: Context[Translate]) -> Done[Translated]:
    """Fit a translator on this hospital's training patients, measure its quality, and write the translated cohort.

    Returns:
        `cohort` and `sha256` of the cohort to be used in this space, `vetoed` (why the translation is not used; then
        it is the raw cohort) and `quality`. Under differential privacy a translator that learns from several patients
        is refused, and quality is not measured, because a veto depends on all patients.
    """
    call, tensors, raw = context.call, context.message.tensors, context.question.cohort
    cohort = cohort_in(hospital, raw)
    how = _check_question(hospital, context, inputs_of(cohort))
    quiet = how.private or hospital.policy.promises
    if how.translator.learns and quiet:
        raise Refused("unprotected_translation")
    if how.is_target and how.translator.learns:  # the others' images are translated to look like its own
        return _build_answer(hospital, raw, (), None, quiet)._replace(memory=_memory_of_splits(raw))
    with show_progress(how.space) as step:
        report_progress = make_progress(hospital, step)
        brought = _translate_cohort(hospital, call, tensors, how, cohort, report_progress)
        quality: Quality | None = None
        judges: tuple[Split, ...] = ()
        if not (quiet or isinstance(how.translator, Oracle | Exported)):
            report_progress(0, 0, "judging")
            quality, judges = judge_translation(cohort, brought, tensors, how.scale, SEED), judging_splits(cohort)
    reasons = () if quality is None else list_veto_reasons(how.translator, quality, how.limits)
    write_points(hospital, how.space, cohort, brought.images, tensors["images"], how.scale)
    name = _write_cohort(hospital, cohort, brought, how)
    _store_note(hospital, how, raw, name, quality, reasons)
    if brought.params is not None:
        _write_translator(hospital, cohort, brought.params, how, Made(name, reasons, call.run, quality is not None))
    done = _build_answer(hospital, raw if reasons else name, reasons, quality, quiet)
    shaped = _memory_of_splits(raw, fitted=("train",) if how.translator.learns else (), judges=judges)
    return done._replace(memory=Message({}, {**shaped.facts, **_by_nobody(how.translator, brought)}))


def _by_nobody(translator: AnySpace, brought: Brought) -> dict[str, Json]:
    """What shaped a translator that no patient shaped, for the statement."""
    if not isinstance(translator, Randomized) or brought.params is None:
        return {}
    digest = hashlib.sha256(to_bytes(Message(brought.params))).hexdigest()
    return {TRANSLATION: {"prior": translator.prior_of(brought.images.shape[1]), "sha256": digest}}


def _memory_of_splits(cohort: str, *, fitted: tuple[Split, ...] = (), judges: tuple[Split, ...] = ()) -> Message:
    """The splits that this translation used, stored for patients who withdraw later."""
    words = {split: [FITTED] * (split in fitted) + [JUDGED] * (split in judges) for split in SPLITS}
    uses = {split: "; ".join(parts) for split, parts in words.items() if parts}
    return Message({}, looked_at(cohort, uses))


def list_veto_reasons(translator: AnySpace, quality: Quality, limits: Limits) -> tuple[str, ...]:
    """Reasons for a veto. Coming no nearer to the shared images does no harm, and a normalization must be the same at
    all hospitals, so these are no reasons.
    """
    vetoes = list_vetoes(quality, limits)
    return vetoes if translator.learns else tuple(reason for reason in vetoes if reason not in HARMLESS)


def _build_answer(
    hospital: Hospital, cohort: str, reasons: tuple[str, ...], quality: Quality | None, quiet: bool
) -> Done[Translated]:
    digest = digest_of(hospital.cohort_folder(cohort) / COHORT) or ""
    reply = Translated(
        cohort=cohort,
        sha256=keyed_digest(hospital.key(), digest),
        vetoed=list(reasons),
        quality={} if quality is None else finite_numbers(asdict(quality)),
    )
    return Done(reply, describe_event(NOTHING if quiet else NON_PRIVATE))


def _check_question(hospital: Hospital, context: Context[Translate], inputs: Inputs) -> How:
    """What is asked, checked before a patient is read. inputs: shape of the cohort's examples, which is not secret.

    Raises:
        Refused: `malformed_shared`.
    """
    message, question = context.message, context.question
    _check_shared(message.tensors, inputs)
    site_limits = None if hospital.settings is None else hospital.settings.veto
    shaping = {name: value for name, value in message.facts.items() if name not in ("veto", "copies")}
    return How(
        translator=question.translator,
        limits=question.veto if site_limits is None else site_limits,
        scale=question.scale,
        seed=derive_seed(question.seed, hospital.name, "translate", question.space),
        space=question.space,
        scanner=str(question.scanner),
        is_target=question.is_target,
        private=question.private is not False,
        question=hashlib.sha256(to_bytes(Message(message.tensors, shaping))).hexdigest(),
        unlabelled=question.unlabelled is True,
    )


def _check_shared(shared: Params, inputs: Inputs) -> None:
    """Check the shared images first, since a later error could depend on patients. Raises: Refused."""
    images, labels = shared.get("images"), shared.get("labels")
    good = (
        images is not None
        and labels is not None
        and images.dtype == torch.float32
        and tuple(images.shape[1:]) == inputs
        and LEAST_SHARED <= len(images) <= MOST_SHARED
        and bool(images.isfinite().all())
        and float(images.abs().max()) <= 1.0
        and labels.dtype == torch.int64
        and tuple(labels.shape) == (len(images),)
        and bool(((labels == 0) | (labels == 1)).all())
    )
    if not good:
        raise Refused("malformed_shared")


def _translate_cohort(
    hospital: Hospital, call: Call, shared: Params, how: How, cohort: Cohort, report_progress: Progress
) -> Brought:
    """The cohort's images in the new space."""
    from pipelines.hospital.simulated_spaces import render_grey_values, rendered_again  # slow to import

    if isinstance(how.translator, Oracle):
        return Brought(rendered_again(hospital, cohort, how.scanner))
    if isinstance(how.translator, Exported):
        return Brought(render_grey_values(hospital, cohort))
    translator: Translator = how.translator
    raw = how.scale.into(cohort.images)
    train = (cohort.split == SPLITS.index("train")).nonzero()[:, 0]
    sides = class_sides(cohort)[train]
    site_images = SiteImages(raw[train], torch.zeros_like(sides) if how.unlabelled else sides, cohort.patient[train])
    folder = DiskFolder(hospital.root / "fitting" / call.run.rpartition("/")[2])
    if isinstance(translator, Randomized):
        inputs, device = inputs_of(cohort), hospital.device
        params = public_translation(hospital.for_all, translator, inputs, progress=report_progress, device=device)
    else:
        params = fit_translator(
            translator,
            site_images,
            shared["images"],
            shared["labels"],
            seed=how.seed,
            folder=folder,
            progress=report_progress,
            device=hospital.device,
        )
    new = translate_each_patient(translator, params, raw, cohort.patient)
    return Brought(how.scale.back(new), translate_back(translator, params, raw), params)


def judging_splits(cohort: Cohort) -> tuple[Split, ...]:
    """The splits of quality control: validation, on which it was not fitted; if that is small, train too."""
    is_small = int((cohort.split == SPLITS.index("validation")).sum()) < ENOUGH
    return ("train", "validation") if is_small else ("validation",)


def judge_translation(cohort: Cohort, brought: Brought, shared: Params, scale: Scale, seed: int) -> Quality:
    """The quality of a translation on the splits of `judging`."""
    judges = torch.tensor([SPLITS.index(split) for split in judging_splits(cohort)])
    rows = torch.isin(cohort.split.long(), judges).nonzero()[:, 0]
    return measure_quality(
        scale.into(cohort.images[rows]),
        scale.into(brought.images[rows]),
        class_sides(cohort)[rows],
        cohort.patient[rows],
        cohort.lesion[rows],
        cohort.gland[rows],
        shared["images"],
        cycled=None if brought.cycled is None else brought.cycled[rows],
        seed=seed,
    )


def _write_cohort(hospital: Hospital, cohort: Cohort, brought: Brought, how: How) -> str:
    """Write the translated cohort beside the raw one; return its name.

    A translator fitted on several patients makes their images depend on each other, so `independent` becomes False.
    """
    recipe: dict[str, Json] = {
        **cohort.recipe,
        "independent": cohort.recipe.get("independent") is True and not how.translator.learns,
        "space": how.space,
        "translator": None if brought.params is None else to_plain(how.translator),
        # Cohorts of two requests never share a name, which would reveal that their images are equal.
        "question": how.question,
    }
    made = replace(cohort, images=brought.images.to(torch.float32).contiguous(), recipe=recipe)
    name = short_digest(write_cohort_file(hospital.root / "cohorts", made, hospital.key()))
    folder = DiskFolder(hospital.cohort_folder(name))
    folder.write(REJECTED, b"[]")  # rejections are listed beside the raw cohort
    folder.write(SPLIT, json.dumps(split_of(cohort), indent=1).encode())
    return name


def _write_translator(hospital: Hospital, cohort: Cohort, params: Params, how: How, made: Made) -> None:
    """Write the forward translator beside its cohort, for models trained on that, and under the name of the space, for
    `pipelines.translate`. Both stay here.
    """
    if isinstance(how.translator, Oracle | Exported) or hospital.settings is None:
        return
    files = files_of(hospital)
    forth = {name: tensor for name, tensor in params.items() if not name.startswith("back/")}
    for folder, label in ((hospital.cohort_folder(made.cohort), FOLDER), (hospital.root / TRANSLATORS, how.space)):
        write_translator(
            DiskFolder(folder),
            label,
            site=hospital.name,
            settings=how.translator,
            params=forth,
            scale=how.scale,
            images=IMAGES.validate_python(cohort.recipe["images"]),
            source=files.source,
            gland=files.gland is not None,
            vetoed=made.reasons,
            origin={"run": made.run, "judged": made.judged},
        )


def _store_note(
    hospital: Hospital, how: How, raw: str, name: str, quality: Quality | None, reasons: tuple[str, ...]
) -> None:
    """Store figures and a note on the translation, for the hospital's own page."""
    note = {
        "space": how.space,
        "raw": raw,
        "cohort": name,
        "vetoed": list(reasons),
        "quality": None if quality is None else finite_numbers(asdict(quality)),
        "sentences": [] if quality is None else list(describe_vetoes(quality, how.limits)),
        "unknown": [] if quality is None else list(list_unknown_figures(quality, how.limits)),
    }
    DiskFolder(hospital.root / QUALITIES).write(f"{how.space}.{raw}.json", json.dumps(note).encode())


def finite_numbers(numbers: Mapping[str, object]) -> dict[str, float | int | str | None]:
    """The numbers with None in place of NaN and infinity, which JSON lacks."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else None
        for name, value in numbers.items()
        if isinstance(value, int | float | str) or value is None
    }
