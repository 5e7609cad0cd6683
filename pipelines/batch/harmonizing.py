"""Harmonize a folder: fit a translator to the look of other studies, judge it, show it, and translate all studies."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from harmonize.quality import Quality, measure_quality
from harmonize.scale import Scale
from harmonize.translation import (
    HistogramMatch,
    Nyul,
    Percentile,
    Randomized,
    Reinhard,
    SiteImages,
    Translator,
    ZScore,
    translate_each_patient,
)
from harmonize.veto import HARMLESS, Limits, list_vetoes
from pipelines.batch.harmonized_page import Views, write_page
from pipelines.batch.loop import Results, collect_results, find_place_problems, print_text, run_batch
from pipelines.batch.prediction import open_unlabelled
from pipelines.batch.translation import translate_waiting
from pipelines.data.alike import adapt_source
from pipelines.data.images import Slices
from pipelines.data.index import folder_problems
from pipelines.data.intake import ReadStudy, read_studies
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.models.translator_file import TranslatorFile, read_translator, write_translator
from pipelines.runs.progress import show_progress
from pipelines.runs.store import DiskFolder
from pipelines.settings.harmonization import default_scale
from privacy.message import Params

UNITS = {"adc": "ADC, 1e-3 mm²/s", "standardized": "standard deviations of the study"}
STUDIES = 40  # of each folder, for fit and judgement
TRANSLATORS: Mapping[str, Translator] = {
    "nyul": Nyul(),
    "zscore": ZScore(),
    "percentile": Percentile(),
    "histogram": HistogramMatch(),
    "reinhard": Reinhard(),
    "randomized": Randomized(),
}


class Sample(NamedTuple):
    """Slices of some studies. images: (n, 1, s, s) in [-1, 1]. patient: (n,). gland: (n, s, s), or (n, 0)."""

    images: Tensor
    patient: Tensor
    gland: Tensor


def harmonize_folder(options: argparse.Namespace) -> int:
    """The command `python -m pipelines.harmonize`; returns the exit code."""
    torch.set_num_threads(1)

    def run_work(console: Console) -> int:
        _check_options(options)
        if options.to and Path(options.to).is_file():
            options.translator, file = options.to, read_translator(Path(options.to))
            images, target = file.images, None
        else:
            images, target = _build_images(options), _sample_target(options, console)
            file = None
        if not isinstance(images, Slices):
            raise ValueError(f"--to: this translator works on {images.kind}; those of slices write DICOM and NIfTI")
        scale = default_scale(images) if file is None else file.scale
        source = _build_source(options.folder, options, file)
        sample = _read_sample(source, images, scale, options.gland, "harmonize: reading studies", options, console)
        if file is None:
            file, quality = _fit_translator(sample, target, images, scale, source, options)
        else:
            quality = None
        after = translate_each_patient(file.settings, file.params, sample.images, sample.patient)
        views = Views(sample.images, after, None if target is None else target.images, sample.patient)
        page = _page_path(options)
        write_page(
            page, views, by=file.label, unit=UNITS[images.values], scale=scale, quality=quality, vetoed=file.vetoed
        )
        print_text(console, str(page))
        return translate_waiting(options, console)

    return run_batch(run_work)


def _check_options(options: argparse.Namespace) -> None:
    """Raise ValueError with all problems of the command line that no study is needed for."""
    problems = folder_problems("FOLDER", options.folder)
    problems += find_place_problems(options.folder, options.out, "--out", {"--key": options.key})
    if options.to is None and options.by != "randomized":
        problems.append(f"--to: missing; {options.by} needs a folder of studies that have the wanted look")
    if options.to is not None and not Path(options.to).exists():
        problems.append(f"--to: {options.to!r} does not exist; give a folder of studies, or a translator's file")
    if options.to is not None and Path(options.to).resolve() == Path(options.folder).resolve():
        problems.append("--to is FOLDER itself; give studies that have another look")
    if not 0.1 <= options.spacing <= 10:
        problems.append(f"--spacing must be in [0.1, 10] mm, found {options.spacing:g}")
    if not 16 <= options.size <= 1024:
        problems.append(f"--size must be in [16, 1024] pixels, found {options.size}")
    if problems:
        raise ValueError("\n".join(problems))


def _build_images(options: argparse.Namespace) -> Slices:
    """The slices that are measured: about the gland with masks, else about the image's centre."""
    images = Slices(values=options.values, spacing_mm=options.spacing, size=options.size)
    return images if options.gland else replace(images, centre="image")


def _build_source(
    folder: str, options: argparse.Namespace, file: TranslatorFile | None, *, target: bool = False
) -> DicomSource | NiftiSource:
    """The source settings of a folder of studies. Without a translator's file DICOM series are those of ADC."""
    kind = (options.target_kind if target else None) or options.kind or _find_kind(folder)
    select = (options.target_select if target else []) or options.select
    if file is not None:
        return adapt_source(
            file.source, folder, kind=options.kind, select=select, unit=options.unit, trained_name="translator"
        )
    known = NiftiSource(folder=".") if kind == "nifti" else DicomSource(folder=".")
    select = select or (["kind=adc"] if kind == "dicom" and options.values == "adc" else [])
    return adapt_source(known, folder, kind=kind, select=select, unit=options.unit, trained_name="translator")


def _find_kind(folder: str) -> str:
    """`nifti` where a folder holds such a file, else `dicom`."""
    return "nifti" if any(next(Path(folder).rglob(pattern), None) for pattern in ("*.nii", "*.nii.gz")) else "dicom"


def _sample_target(options: argparse.Namespace, console: Console) -> Sample | None:
    """Slices with the wanted look; None for a translator that needs none."""
    if options.to is None:
        return None
    images = _build_images(options)
    if options.target_gland is None and options.gland:
        images = replace(images, centre="image")
    source = _build_source(options.to, options, None, target=True)
    what = "harmonize: reading TARGET"
    return _read_sample(source, images, default_scale(images), options.target_gland, what, options, console)


def _read_sample(
    source: DicomSource | NiftiSource,
    images: Slices,
    scale: Scale,
    gland: str | None,
    what: str,
    options: argparse.Namespace,
    console: Console,
) -> Sample:
    """Slices of at most `STUDIES` studies, spread evenly over the folder.

    Raises:
        ValueError: no study can be used; the reasons are named.
    """
    opened = open_unlabelled(images, source, gland)
    step = max(1, -(-len(opened.waiting) // STUDIES))
    waiting, results = opened.waiting[::step], Results[ReadStudy]([], [*opened.rejected])
    collect_results(what, read_studies(waiting, readers=options.readers), len(waiting), results, console)
    if not results.done:
        reasons = sorted({f"{study.reason}: {study.detail}" for study in results.refused})
        raise ValueError(f"{source.folder}: no study can be used. {' '.join(reasons) or 'None is there.'}")
    examples = [study.examples for study in results.done]
    numbers = [number for number, part in enumerate(examples) for _ in range(len(part.images))]
    return Sample(
        scale.into(torch.from_numpy(np.concatenate([part.images for part in examples]))),
        torch.tensor(numbers),
        torch.from_numpy(np.concatenate([part.gland for part in examples])),
    )


def _fit_translator(
    sample: Sample,
    target: Sample | None,
    images: Slices,
    scale: Scale,
    source: DicomSource | NiftiSource,
    options: argparse.Namespace,
) -> tuple[TranslatorFile, Quality | None]:
    """Fit the translator, judge it where there is a target, and write its file, whose path goes into the options."""
    settings = TRANSLATORS[options.by]
    labels = torch.zeros_like(sample.patient)
    params = _learn(settings, SiteImages(sample.images, labels, sample.patient), target, options)
    quality: Quality | None = None
    vetoed: tuple[str, ...] = ()
    if target is not None:
        after = translate_each_patient(settings, params, sample.images, sample.patient)
        lesion = torch.zeros(len(after), 0)
        quality = measure_quality(
            sample.images, after, labels, sample.patient, lesion, sample.gland, target.images, seed=0
        )
        vetoed = tuple(name for name in list_vetoes(quality, Limits()) if settings.learns or name not in HARMLESS)
    folder = Path(f"{Path(options.out)}.translator")
    write_translator(
        DiskFolder(folder),
        options.by,
        site="target",
        settings=settings,  # type: ignore[arg-type]
        params=params,
        scale=scale,
        images=images,
        source=source,
        gland=bool(options.gland),
        vetoed=vetoed,
        origin={"by": "pipelines.harmonize", "judged": quality is not None},
    )
    options.translator = str(folder / f"{options.by}.safetensors")
    return read_translator(Path(options.translator)), quality


def _learn(settings: Translator, site_images: SiteImages, target: Sample | None, options: argparse.Namespace) -> Params:
    """The translator's parameters."""
    if isinstance(settings, Randomized):
        channels, height, width = site_images.images.shape[1:]
        if (parameters := _find_learnt(settings, options, (channels, height, width))) is not None:
            return parameters
        with show_progress("harmonize: learning from drawn pictures") as step:
            return settings.learn_parameters((channels, height, width), progress=step)
    if target is None:
        raise ValueError(f"--to: missing; {settings.name} needs a folder of studies that have the wanted look")
    return settings.fit(site_images, target.images, seed=0)


def _find_learnt(settings: Randomized, options: argparse.Namespace, inputs: tuple[int, int, int]) -> Params | None:
    """What an earlier call learnt from drawn pictures, which takes minutes; None if there is nothing."""
    path = Path(f"{Path(options.out)}.translator", f"{options.by}.safetensors")
    if not path.is_file():
        return None
    file = read_translator(path)
    same = file.settings == settings and isinstance(file.images, Slices) and file.images.inputs == inputs
    return file.params if same else None


def _page_path(options: argparse.Namespace) -> Path:
    """Where the page lies, beside OUT."""
    out = Path(options.out)
    return out.parent / f"{out.name or 'out'}.harmonized.html"
