"""Image spaces that only phantoms have: their patients on the target's scanner, and their scanner's raw export."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from pipelines.data.cohort import Cohort, read_cohort
from pipelines.data.images import IMAGES
from pipelines.data.pseudonym import make_pseudonym
from pipelines.hospital.files import Files, files_of, list_phantom_files, settings_of
from pipelines.hospital.hospital import Hospital
from pipelines.phantom.patients import PhantomSource, ScannerName, patient_name
from pipelines.phantom.scanner import SCANNERS
from privacy.message import as_list
from privacy.release.gate import Refused


def phantom_of(hospital: Hospital) -> PhantomSource:
    """The hospital's phantom. Raises: Refused: `not_a_phantom`: its patients are real."""
    source = settings_of(hospital).source
    if not isinstance(source, PhantomSource):
        raise Refused("not_a_phantom")
    return source


def rendered_again(hospital: Hospital, cohort: Cohort, scanner: str) -> Tensor:
    """The cohort's images as another scanner would have given them: (n, C, H, W), row by row the same slices.

    The same patients are written and read again. A slice that the other scanner's study lacks stays as it is.

    Raises:
        Refused: `not_a_phantom`.
    """
    source = _image_by(hospital, scanner)
    again = replace(hospital, settings=replace(settings_of(hospital), source=source))
    return _read_again(hospital, cohort, files_of(again), torch.arange(len(cohort.labels)))


def render_rows_again(hospital: Hospital, cohort: Cohort, rows: Sequence[int], scanner: str) -> Tensor:
    """The same of some rows. Only their patients are written, into a folder that is gone afterwards.

    Raises:
        Refused: `not_a_phantom`.
    """
    from pipelines.phantom.files import write_patients  # writers of DICOM and NIfTI are slow to import

    source, key = _image_by(hospital, scanner), hospital.key()
    numbers = {make_pseudonym(key, patient_name(source, number)): number for number in range(source.patients)}
    patients = {cohort.patients[int(cohort.patient[row])] for row in rows}
    with tempfile.TemporaryDirectory(dir=hospital.scratch()) as place:
        folder = Path(place) / "again"
        write_patients(source, folder, sorted(numbers[patient] for patient in patients if patient in numbers))
        return _read_again(hospital, cohort, list_phantom_files(source, folder), torch.tensor(rows))


def _image_by(hospital: Hospital, scanner: str) -> PhantomSource:
    """The hospital's phantom at another scanner. Raises: Refused: `not_a_phantom`, `malformed_settings`."""
    source = phantom_of(hospital)
    if scanner not in SCANNERS:
        raise Refused("malformed_settings") from ValueError(f"scanner {scanner!r}; known are {', '.join(SCANNERS)}")
    return replace(source, scanner=cast(ScannerName, scanner))


def _read_again(hospital: Hospital, cohort: Cohort, files: Files, rows: Tensor) -> Tensor:
    """The images of these rows as they are in other files of the same patients; as they were, where none has them."""
    settings = settings_of(hospital)
    reading = read_cohort(
        files.source,
        files.labels,
        IMAGES.validate_python(cohort.recipe["images"]),
        gland=files.gland,
        fractions={"train": 1.0, "validation": 0.0, "test": 0.0},
        seed=0,
        key=hospital.key(),
        readers=settings.readers,
        scratch=hospital.scratch(),
        classes=tuple(map(str, as_list(cohort.recipe.get("labels", [])))),
    ).cohort
    places = {
        (reading.patients[int(patient)], float(position)): row
        for row, (patient, position) in enumerate(zip(reading.patient, reading.position, strict=True))
    }
    images = cohort.images[rows].clone()
    for number, row in enumerate(rows.tolist()):
        place = places.get((cohort.patients[int(cohort.patient[row])], float(cohort.position[row])))
        if place is not None:
            images[number] = reading.images[place]
    return images


def render_grey_values(hospital: Hospital, cohort: Cohort) -> Tensor:
    """Grey values as the scanner's export window and tone curve give them, its brightest at 3.5: (n, C, H, W).

    Raises:
        Refused: `not_a_phantom`.
    """
    source = phantom_of(hospital)
    if source.export == "grey":  # it has nothing else
        return cohort.images.clone()
    scanner = SCANNERS[source.scanner]
    share = (cohort.images * 1000 / scanner.window).clamp(0, 1)
    return 3.5 * torch.pow(share, 1 / scanner.gamma)
