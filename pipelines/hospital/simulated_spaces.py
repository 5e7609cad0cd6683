"""Image spaces that only phantoms have: their patients on the target's scanner, and their scanner's raw export."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from pipelines.data.cohort import Cohort, read_cohort
from pipelines.data.images import IMAGES
from pipelines.hospital.files import files_of, settings_of
from pipelines.hospital.hospital import Hospital
from pipelines.phantom.patients import PhantomSource, ScannerName
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
    source = phantom_of(hospital)
    if scanner not in SCANNERS:
        raise Refused("malformed_settings") from ValueError(f"scanner {scanner!r}; known are {', '.join(SCANNERS)}")
    settings = settings_of(hospital)
    other = replace(source, scanner=cast(ScannerName, scanner))
    again = replace(hospital, settings=replace(settings, source=other))
    files = files_of(again)
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
    images = cohort.images.clone()
    for row, (patient, position) in enumerate(zip(cohort.patient, cohort.position, strict=True)):
        place = places.get((cohort.patients[int(patient)], float(position)))
        if place is not None:
            images[row] = reading.images[place]
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
