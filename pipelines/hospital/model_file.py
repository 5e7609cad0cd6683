"""Write the files of a hospital's finished models."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from federation.calibration import Calibrated
from federation.models import OnFeatures
from federation.models.adapted import fixed_in
from federation.origins import package_facts
from federation.parameters import read_parameters
from harmonize.translation import AnyTranslator
from pipelines.data.cohort import Cohort
from pipelines.data.stored import finding_names, label_names, of_patients
from pipelines.hospital.beginnings import START
from pipelines.hospital.files import files_of
from pipelines.hospital.frozen import SCALE as FEATURES
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.opening import Opening
from pipelines.loader.validation import to_plain
from pipelines.models.file import CENTRING, FIXED, FORMAT, PREFIX, READY, SCALED, digest_of, ended_in, find_window
from pipelines.models.likeness import ENDING, likeness_of, to_file
from pipelines.models.translator_file import FOLDER, read_translator, remove_places
from pipelines.runs.store import DiskFolder, library_versions
from privacy.message import (
    Json,
    Message,
    Params,
    as_mapping,
    from_bytes,
    seal_parts,
    to_bytes,
    unseal_parts,
)


def _needs_gland(cohort: Cohort) -> bool:
    """Whether studies are cropped about a gland mask."""
    images = as_mapping(cohort.recipe.get("images"))
    return images.get("centre", "gland") == "gland" or images.get("slices") == "gland"


def make_ready(
    hospital: Hospital, label: str, start: Opening, served: Calibrated, cohort: Cohort, origin: Mapping[str, Json]
) -> None:
    """Write `ready/<label>.safetensors`, and beside it statistics of the training patients
    (`pipelines.models.likeness`). A private model of an earlier training, for which patients paid, stays as
    `ready/<label>.<digest>.safetensors`; one that a budget cut off takes that place itself, and no other's.

    served: the network that was scored, so that the file predicts as the evaluation did.
    """
    translator, tensors, used = _read_translator(hospital, str(cohort.recipe.get("of", start.cohort)), cohort)
    if isinstance(start.task.model, OnFeatures):
        scale = from_bytes((hospital.cohort_folder(start.cohort) / FEATURES).read_bytes())
        tensors = {**tensors, **{f"{SCALED}{name}": tensor for name, tensor in scale.tensors.items()}}
    if translator is None and "space" in cohort.recipe:
        return  # a space of simulations, into which no new study can be translated
    files = files_of(hospital, checked=False)
    facts: dict[str, Json] = {
        "format": FORMAT,
        "program": library_versions().get("consilium"),
        "site": hospital.name,
        "label": label,
        "algorithm": to_plain(start.algorithm),
        "model": to_plain(start.task.model),
        "inputs": list(start.task.inputs),
        "source": remove_places(files.source),
        "gland": files.gland is not None and _needs_gland(cohort),
        "translated": translator,
        "privacy": None if start.protection is None else to_plain(start.protection),
        **cohort.recipe,
        "kind": start.task.kind,
        "classes": start.task.classes,
        "names": list(_class_names(start, cohort)),
        **({"ordered": True} if start.task.ordered else {}),
        **({START: to_plain(start.begun)} if start.begun is not None else {}),
        **package_facts(start.algorithm, start.task.model, *used),
        **origin,
    }
    params = {name: tensor.cpu() for name, tensor in read_parameters(served.module).items()}
    fitted = {} if served.centring is None else {CENTRING: torch.tensor(served.centring, dtype=torch.float64)}
    fixed = {f"{FIXED}{name}": tensor.cpu().clone() for name, tensor in fixed_in(served.module).items()}
    content = Message({**params, **fixed, **tensors, **fitted}, facts)
    data = seal_parts(to_bytes(content))
    folder = DiskFolder(hospital.root / READY)
    name = _choose_place(folder, label, data, facts)
    folder.remove(f"{name}{ENDING}")  # left by another model
    folder.write(f"{name}.safetensors", data)
    likeness = likeness_of(served.module, of_patients(cohort), find_window(origin, start.task), hospital.device)
    if likeness is not None:
        folder.write(f"{name}{ENDING}", to_file(likeness, digest_of(data)))


def _choose_place(folder: DiskFolder, label: str, data: bytes, facts: Mapping[str, Json]) -> str:
    """The name under which a model is written, after the one there moved aside if patients paid for it."""
    try:
        before = folder.read(f"{label}.safetensors")
        known = from_bytes(unseal_parts(before)).facts
    except (OSError, ValueError):
        return label  # there is none, or it is damaged
    if known.get("privacy") is None or known.get("run") == facts.get("run"):
        return label
    if ended_in(facts) and not ended_in(known):
        return f"{label}.{digest_of(data)}"
    aside = f"{label}.{digest_of(before)}"
    if folder.has(f"{label}{ENDING}"):
        folder.write(f"{aside}{ENDING}", folder.read(f"{label}{ENDING}"))
    folder.write(f"{aside}.safetensors", before)
    return label


def _class_names(start: Opening, cohort: Cohort) -> tuple[str, ...]:
    """Names of classes 1, 2, ... of a segmentation; of all classes, if labels have more than two; of findings."""
    if start.task.kind == "findings":
        return finding_names(cohort)
    if start.task.kind != "segmentation":
        return label_names(cohort) if start.task.classes > 2 else ()
    if start.target in ("gland", "lesion"):
        return (start.target,)
    classes = cohort.recipe.get("classes")
    names = [str(name) for name in classes] if isinstance(classes, list) else []
    return tuple((names + [f"class_{number}" for number in range(1, start.task.classes)])[: start.task.classes - 1])


def _read_translator(hospital: Hospital, name: str, cohort: Cohort) -> tuple[Json, Params, tuple[AnyTranslator, ...]]:
    """The translator into this cohort's space: its settings with their scale, its tensors by name, and itself."""
    if "space" not in cohort.recipe or cohort.recipe.get("translator") is None:
        return None, {}, ()
    made = read_translator(hospital.cohort_folder(name) / f"{FOLDER}.safetensors")
    facts: dict[str, Json] = {"settings": to_plain(made.settings), "scale": to_plain(made.scale)}
    return facts, {f"{PREFIX}{name}": tensor for name, tensor in made.params.items()}, (made.settings,)
