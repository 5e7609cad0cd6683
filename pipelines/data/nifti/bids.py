"""Derive the patient, the visit and the kind of image of a NIfTI file from its name and its sidecar.

Names may follow BIDS (Gorgolewski et al., Sci Data 2016;3:160044). A BIDS name is a chain of entities and a suffix,
`sub-01_ses-02_acq-b800_adc`; a sidecar is a JSON file of the same name, to which converters copy DICOM's ImageType,
SeriesDescription and ProtocolName.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pipelines.data.adc import PATTERN, find_unit_factor
from pipelines.data.quantity import HEADERS, SILENT, AdcDecision, decide_from_headers, decide_from_text, find_contrast
from pipelines.data.sources import FIRST_CHANNEL
from pipelines.data.study import Unusable
from privacy.system_errors import of_machine

ENDINGS = (".nii.gz", ".nii")
SUBJECT = re.compile(r"(sub-[0-9a-z]+)(?:_|$)", re.IGNORECASE)
SESSION = re.compile(r"(?:^|_)(ses-[0-9a-z]+)(?:_|$)", re.IGNORECASE)
MAPS = ("map", "dwimap")  # suffixes of derivatives, whose entities name the quantity: param-adc_dwimap
LARGEST_SIDECAR = 2**20  # bytes


def file_stem(name: str) -> str:
    """A file's name without .nii, .nii.gz or another ending."""
    cut = next((len(end) for end in ENDINGS if name.lower().endswith(end)), None)
    return name[:-cut] if cut else PurePosixPath(name).stem


def find_patient_session(study: str, expression: str | None) -> tuple[str | None, str]:
    """Patient and session of a file.

    study: its path below the source's folder. expression: with one group, searched for in the name without its ending;
    None = the subject of a BIDS name, or of the folder (sub-01/...) if the name has none; or else the whole name.

    Returns:
        Patient: None if the expression does not match. Session: "" if neither name nor folder has one.
    """
    path = PurePosixPath(study)
    name, folders = file_stem(path.name), [str(part) for part in reversed(path.parts[:-1])]
    sessions = (match[1] for text in (name, *folders) if (match := SESSION.search(text)))
    session = next(sessions, "").lower()
    if expression is not None:
        match = re.search(expression, name)
        return (None if match is None else match[1]), session
    subjects = [SUBJECT.match(name), *(SUBJECT.fullmatch(folder) for folder in folders)]
    return next((subject[1] for subject in subjects if subject), name), session


def find_case(study: str) -> str:
    """The name of a file without its ending, and without nnU-Net's _0000. study: its path below the source's folder."""
    return file_stem(PurePosixPath(study).name).removesuffix(FIRST_CHANNEL)


def read_sidecar(path: Path) -> Mapping[str, object]:
    """The entries on the kind of image in the JSON file of the same name; empty if there is no such file.

    Raises:
        Unusable: `unreadable`.
    """
    sidecar_path = path.with_name(f"{file_stem(path.name)}.json")
    if not sidecar_path.is_file():
        return {}
    try:
        if sidecar_path.stat().st_size > LARGEST_SIDECAR:
            raise ValueError(f"it is larger than {LARGEST_SIDECAR} bytes")
        entries = json.loads(sidecar_path.read_bytes())
        if not isinstance(entries, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        if of_machine(error):
            raise
        raise Unusable(
            "unreadable", f"the sidecar {sidecar_path.name} cannot be read ({error}). Mend or remove it."
        ) from error
    kind_entries = {key: entries[key] for key in (*HEADERS, "Units") if isinstance(entries.get(key), str | list)}
    return {
        key: "\\".join(map(str, value)) if isinstance(value, list) else value for key, value in kind_entries.items()
    }


def decide_from_file(path: Path, description: str, sidecar_entries: Mapping[str, object]) -> AdcDecision:
    """Whether a file is an ADC map by its sidecar, its header's description, its name or its folder's name.

    description: of the NIfTI header. sidecar_entries: see `sidecar`.
    """
    header_decision = decide_from_headers(sidecar_entries)
    if header_decision.adc is not None:
        return header_decision._replace(evidence=f"the sidecar's {header_decision.evidence}")
    unit = PATTERN.search(description.lower())
    if unit is not None and find_unit_factor(description) is not None:
        return AdcDecision(True, f"the NIfTI description says {unit[0].strip()}")
    text_decision, name_decision = (
        decide_from_text(description, "the NIfTI description"),
        _decide_from_name(file_stem(path.name)),
    )
    if text_decision.adc or name_decision.adc is None:
        # A folder may also hold images that were registered to the map: t2_patient1 in ADC.
        contrast = find_contrast(file_stem(path.name))
        folder_decision = SILENT if contrast else decide_from_text(path.parent.name, "the folder's name")
        return next((decision for decision in (text_decision, folder_decision) if decision.adc), name_decision)
    return name_decision


def _decide_from_name(name: str) -> AdcDecision:
    """The decision by the suffix of a BIDS name, or the last word of another name; other words may name a person."""
    *entities, suffix = name.split("_")
    if SUBJECT.match(name) and suffix.lower() in MAPS:
        suffix = " ".join(entity.partition("-")[2] for entity in entities if entity.startswith(("param-", "desc-")))
    full_decision = SILENT if SUBJECT.match(name) else decide_from_text(name, "the file's name")
    if full_decision.evidence and full_decision.adc is not False:
        return full_decision
    return decide_from_text(re.split(r"[\W_]+", suffix)[-1], "the file's name")
