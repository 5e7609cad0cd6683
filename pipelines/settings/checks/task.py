"""Checks of settings against the task."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pipelines.data.archive_sources import DicomNodeSource, DicomWebSource, build_folder_source
from pipelines.data.images import Slices, Volumes
from pipelines.data.label_classes import value_problems
from pipelines.data.label_findings import FindingNames
from pipelines.data.readers import resolve_source
from pipelines.data.requirements import find_label_maps, mask_problems
from pipelines.data.sources import MaskLabels, PictureSource, TableLabels, TableSource, TensorSource, VolumeMasks
from pipelines.phantom.findings import PHANTOM_FINDINGS
from pipelines.phantom.organs import GRADE_GROUPS
from pipelines.phantom.patients import PHANTOM_UNITS, PhantomSource
from pipelines.settings.checks.variants import describe_other_task
from pipelines.settings.run_settings import RunSettings, list_works, select_model
from pipelines.settings.sites import LABELS_MISSING, VOLUME_SOURCES, Elsewhere, SiteSettings
from pipelines.settings.task import AnyTask, Classification, Regression, SeveralFindings
from privacy.settings_error import Problem


def problems(run: RunSettings) -> list[Problem]:
    """Sites without the task's masks, and settings that do not fit the task."""
    found_problems = [
        each.within("sites", name) for name, site in run.sites.items() for each in _target_problems(run, site)
    ]
    found_problems += _contrast_problems(run)
    if isinstance(run.task, Regression | SeveralFindings):
        found_problems += _class_part_problems(run)
    if run.task.kind == "segmentation":
        found_problems += [*_window_problems(run), *_image_problems(run), *_segmentation_problems(run)]
    elif run.evaluate.window is not None:
        found_problems.append(Problem(("evaluate", "window"), "it is for masks; remove it"))
    return list(dict.fromkeys(found_problems))


def _contrast_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of phantoms whose images have no unit in a run whose images have one."""
    unit = getattr(run.images, "values", "")
    for name, site in run.sites.items():
        if isinstance(site.source, PhantomSource) and site.source.contrast == "t2w" and unit == "adc":
            text = "t2w has no unit, and images.values is adc; say images: {values: standardized}, or contrast: adc"
            yield Problem(("sites", name, "source", "contrast"), text)


def _target_problems(run: RunSettings, site: SiteSettings) -> list[Problem]:
    """Why a site cannot provide the task's target."""
    task, source = run.task, resolve_source(site.source)
    if site.unlabelled:
        text = "methods learn from labels, and this hospital has none; leave train out, or give labels"
        return [Problem(("unlabelled",), text)] if run.train.methods else []
    if task.target is None and isinstance(source, VOLUME_SOURCES) and site.labels is None:
        return [Problem(("labels",), LABELS_MISSING)]
    if target_problems := _find_label_problems(task, site):
        return target_problems
    if task.target in ("gland", "lesion") and run.images.kind not in ("slices", "volumes"):
        text = f"the target {task.target} needs images of kind slices or volumes, found {run.images.kind}"
        return [Problem(("source",), text)]
    if task.target is not None and run.images.kind == "tensors" and len(run.images.inputs) < 3:
        text = f"masks are of images (C, H, W) or (C, D, H, W), and images.inputs is {list(run.images.inputs)}"
        return [Problem(("source",), text)]
    if task.target == "masks" and isinstance(source, PhantomSource | DicomWebSource | DicomNodeSource):
        text = f"{source.kind} has no label maps, and the target is masks; say dicom or nifti, with masks, or another "
        return [Problem(("source", "kind"), f"{text}target: gland or lesion")]
    if isinstance(source, PhantomSource | Elsewhere):
        return []
    if isinstance(source, DicomWebSource | DicomNodeSource):
        source = build_folder_source(source, ".")
    target_problems = mask_problems(source, site.labels, run.images, site.gland, task.target)
    masks = find_label_maps(source)
    if task.target == "masks" and masks is not None and set(masks.classes) != set(task.names[1:]):
        what = "segments" if isinstance(masks, VolumeMasks) and masks.segments else "values"
        text = f"classes are {', '.join(masks.classes)}, and the task's are {', '.join(task.names[1:])}; give {what} "
        place = ("source", "masks", what)
        target_problems.append(Problem(place, f"{text}of these", needs=(place,)))
    return target_problems


def _find_label_problems(task: AnyTask, site: SiteSettings) -> list[Problem]:
    """Why a site's labels cannot be what the task learns, where that is no mask."""
    if isinstance(task, SeveralFindings):
        return _finding_source_problems(task, site)
    return _refuse_findings(site) or (
        _label_problems(task, site)
        if isinstance(task, Classification)
        else _number_source_problems(task, site)
        if isinstance(task, Regression)
        else []
    )


def _refuse_findings(site: SiteSettings) -> list[Problem]:
    """Columns of several findings at a site whose task learns something else."""
    source = resolve_source(site.source)
    text = "name the columns of several findings, and the task learns one label; remove them, or say task: "
    text += "{kind: findings, findings: [...]}"
    if isinstance(source, PhantomSource) and source.labels == "findings":
        text = "findings are several an example; say task: {kind: findings, findings: "
        return [Problem(("source", "labels"), f"{text}[{', '.join(PHANTOM_FINDINGS)}]}}")]
    if isinstance(source, PictureSource | TableSource) and source.findings:
        return [Problem(("source", "findings"), text)]
    if isinstance(site.labels, TableLabels) and site.labels.findings:
        return [Problem(("labels", "findings"), text)]
    return []


def _finding_source_problems(task: SeveralFindings, site: SiteSettings) -> list[Problem]:
    """Why a site's labels cannot be several findings."""
    source, meaning = resolve_source(site.source), FindingNames(task.findings)
    if isinstance(source, PhantomSource):
        if source.labels != "findings":
            text = f"{source.labels} gives one label, and the task learns several findings; say labels: findings"
            return [Problem(("source", "labels"), text)]
        if unknown := [name for name in task.findings if name not in PHANTOM_FINDINGS]:
            text = (
                f"a phantom has {', '.join(PHANTOM_FINDINGS)}, and the task names {', '.join(unknown)}; leave out these"
            )
            return [Problem(("source", "labels"), text)]
        return []
    if isinstance(site.labels, MaskLabels):
        return [
            Problem(("labels", "kind"), "a mask gives one class, and the task learns several findings; give a table")
        ]
    if isinstance(source, PictureSource | TableSource):
        return [*_find_column_problems(source, meaning, "source"), *_find_picture_problems(source)]
    return _find_column_problems(site.labels, meaning, "labels") if isinstance(site.labels, TableLabels) else []


def _find_column_problems(
    table: PictureSource | TableSource | TableLabels, meaning: FindingNames, where: str
) -> list[Problem]:
    """Problems of the columns of findings, and of what stands in them."""
    column_problems = value_problems(table.values, meaning, where)
    if strange := sorted({*table.findings} - {*meaning.names}):
        text = f"{', '.join(strange)} are no findings of the task; these are {', '.join(meaning.names)}"
        column_problems.append(Problem((where, "findings"), text))
    columns = meaning.list_columns(table.findings)
    if twice := sorted({column for column in columns if columns.count(column) > 1}):
        column_problems.append(Problem((where, "findings"), f"two findings are in the column {', '.join(twice)}"))
    if isinstance(table, TableSource) and (lacking := [name for name in meaning.names if name not in table.findings]):
        text = f"missing for {', '.join(lacking)}; say finding: column for each finding of the task, and no label"
        column_problems.append(Problem((where, "findings"), text))
    if isinstance(table, TableSource) and table.positive_above is not None:
        column_problems.append(
            Problem((where, "positive_above"), "is for one label, and findings are several; remove it")
        )
    return column_problems


def _find_picture_problems(source: PictureSource | TableSource) -> list[Problem]:
    """Problems of pictures without a table of findings."""
    if isinstance(source, PictureSource) and source.table is None:
        return [Problem(("source", "table"), "missing; findings stand in columns of a table, not in masks")]
    return []


def _label_problems(task: Classification, site: SiteSettings) -> list[Problem]:
    """Why a site's labels cannot be the task's classes."""
    source, classes = resolve_source(site.source), task.classes
    if isinstance(source, PhantomSource) and source.labels in PHANTOM_UNITS:
        text = f"{source.labels} gives a number; say task: {{kind: regression, ...}}"
        return [Problem(("source", "labels"), text)]
    graded = isinstance(source, PhantomSource) and source.labels == "grade_group"
    if graded and classes != GRADE_GROUPS:
        text = f"grade_group gives the classes {', '.join(GRADE_GROUPS)}; name them in task.classes"
        return [Problem(("source", "labels"), text)]
    two = "tells two classes, and the task has"
    if isinstance(source, PhantomSource):
        text = f"significant {two} {len(classes)}; say grade_group, or remove task.classes"
        return [] if graded or len(classes) in (0, 2) else [Problem(("source", "labels"), text)]
    if isinstance(site.labels, MaskLabels) and len(classes) > 2:
        return [Problem(("labels", "kind"), f"a mask {two} {len(classes)}; give a table")]
    if isinstance(source, PictureSource | TableSource):
        label_problems = value_problems(source.values, classes, "source")
        if isinstance(source, PictureSource) and source.label is None and len(classes) > 2:
            label_problems.append(
                Problem(("source", "label"), f"a picture's masks {two} {len(classes)}; name the column")
            )
        if isinstance(source, TableSource) and classes and source.positive_above is not None:
            text = "goes with the classes negative and positive, and task.classes names others; remove one of the two"
            label_problems.append(Problem(("source", "positive_above"), text))
        return label_problems
    return value_problems(site.labels.values, classes, "labels") if isinstance(site.labels, TableLabels) else []


def _number_source_problems(task: Regression, site: SiteSettings) -> list[Problem]:
    """Why a site's labels cannot be numbers."""
    source = resolve_source(site.source)
    if isinstance(source, PhantomSource):
        if (unit := PHANTOM_UNITS.get(source.labels)) is None:
            text = f"{source.labels} gives classes, and the task is a number; say {' or '.join(PHANTOM_UNITS)}"
            return [Problem(("source", "labels"), text)]
        text = f"{source.labels} is in {unit}, and task.unit is {task.unit}; say unit: {unit}"
        return [] if unit == task.unit else [Problem(("source", "labels"), text)]
    if isinstance(source, TensorSource):
        return [Problem(("source", "kind"), "labels of tensors are classes, and the task is a number; give a table")]
    if isinstance(site.labels, MaskLabels):
        return [Problem(("labels", "kind"), "a mask gives classes, and the task is a number; give a table")]
    if isinstance(source, PictureSource | TableSource):
        number_problems = value_problems(source.values, task.number, "source")
        if isinstance(source, PictureSource) and (source.table is None or source.label is None):
            text = "a number stands in a column of a table, not in masks; name the column"
            number_problems.append(Problem(("source", "label"), text))
        if isinstance(source, TableSource) and source.positive_above is not None:
            text = "makes two classes of a number, and the task is the number; remove it"
            number_problems.append(Problem(("source", "positive_above"), text))
        return number_problems
    return value_problems(site.labels.values, task.number, "labels") if isinstance(site.labels, TableLabels) else []


def _class_part_problems(run: RunSettings) -> Iterator[Problem]:
    """Parts of a run that compare, balance or attack classes, and so have no meaning where a number is learnt, or
    several findings.
    """
    task_text = describe_other_task(run.task)
    has_none = "findings have none" if run.task.findings else "a number has none"
    if run.harmonize is not None:
        text = f"its veto asks whether translated images still show their classes, and {task_text}; remove it"
        yield Problem(("harmonize",), text)
    if run.augment is not None:
        yield Problem(("augment",), f"balances two classes of labels, and {task_text}; remove it")
    if run.route is not None or run.outside:
        text = f"adapts a model by how sure it is of classes, and {task_text}; remove it"
        yield Problem(("route",) if run.route is not None else ("outside",), text)
    if run.audit.inversion is not None:
        text = f"reconstructs images from gradients of known classes, and {task_text}; remove it"
        yield Problem(("audit", "inversion"), text)
    if any(work.balance for _, _, work in list_works(run)):
        yield Problem(("train", "work", "balance"), f"draws classes equally often, and {has_none}; say false")


def _segmentation_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of privacy, audits and balancing, which have no meaning for masks yet."""
    if run.privacy != "none":
        text = "segmentation is trained privately, but its scores are not released with noise yet; say privacy: none"
        yield Problem(("task", "kind"), text)
    if run.audit.membership:
        text = "it attacks labels of examples, and segmentation has none; say false"
        yield Problem(("audit", "membership"), text)
    if any(work.balance for _, _, work in list_works(run)):
        text = "it draws labels equally often, and masks have none; say false"
        yield Problem(("train", "work", "balance"), text)


def _window_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of a window that does not fit into an image, or that a network cannot take."""
    where, window, sides = ("evaluate", "window"), run.evaluate.window, run.images.inputs[1:]
    if window is None:
        return
    if len(window) != len(sides) or not all(1 <= side <= most for side, most in zip(window, sides, strict=False)):
        yield Problem(where, f"must have {len(sides)} sides within {list(sides)}, found {list(window)}")
        return
    for label in run.train.methods:
        model = select_model(run, label)
        patch = getattr(model, "patch", None)
        if patch is not None:
            if tuple(patch) != tuple(window):
                text = f"{list(window)}, and {label} is predicted by windows of its patch, {list(patch)}; remove it"
                yield Problem(where, text)
            continue
        try:
            with torch.device("meta"):  # nothing is allocated
                model.build(inputs=(run.images.inputs[0], *window), classes=len(run.task.names))
        except ValueError as error:
            yield Problem(where, f"{error} (method {label})")


def _image_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of images that are cropped about the mask that networks must find: the crop would reveal its
    position.
    """
    images = run.images
    if run.task.target == "gland" and isinstance(images, Slices | Volumes) and images.centre == "gland":
        text = "images would be cut about the gland, which is what is to be found; say centre: image"
        yield Problem(("images", "centre"), text)
    elif run.task.target == "gland" and isinstance(images, Slices) and images.slices == "gland":
        text = "those that show the gland, which is what is to be found; say slices: all"
        yield Problem(("images", "slices"), text)
