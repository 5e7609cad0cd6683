"""Studies that were not used: codes that may be shown on a page, and the hospital's private table of their meaning.

Paths and headers contain names of patients. So artifacts and pages name a study by a keyed code and its problem by
fixed words. `linkage.json`, beside the pseudonyms' key and as secret, holds the path, the patient and the full problem
of each code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipelines.data.accounts import Account, format_accounts_csv
from pipelines.data.pseudonym import make_pseudonym
from pipelines.data.study import Rejected
from pipelines.hospital.hospital import Hospital
from pipelines.runs.store import DiskFolder

LINKAGE, ACCOUNTS = "linkage.json", "accounted.csv"

MEANING: Mapping[str, str] = {
    "ambiguous": "several images of one visit lie on the same grid; narrow the selection, or remove all but one",
    "ambiguous_label": "labels are per slice and the patient has several studies; add a study column to the table",
    "ambiguous_name": "several mask names fit the patient; leave one",
    "b_values": "b-values are missing, or too close to each other for a fit; send the whole series",
    "bad_affine": "the header places the image nowhere in space; convert it again",
    "bad_split": "the patient is in two splits, or in one of another name; give one of train, validation, test",
    "bad_label": "a label is neither 0 nor 1, or contradicts another; correct the table, or say what its texts mean",
    "bad_padding": "the header's padding value does not fit its bits, and pixels may have it; export it again",
    "bad_mask": "the mask cannot be used; draw or convert it again",
    "bad_tag": "a header value has the wrong form; export it again",
    "burned_in": "the header says that text is burned into the pixels; blank it, or leave the study out",
    "colour": "a colour image where a grey one is needed; narrow the selection",
    "disk_error": "the disk or the network failed while the file was read; check them, and copy the file again",
    "duplicate_picture": "several lines of the table name one picture; leave one",
    "duplicate_slice": "slices are there twice; remove the copies, or narrow the selection",
    "empty_mask": "the mask shows nothing, and the picture is to be cut about it; draw it, or drop the picture",
    "form_disagreement": "the header places the image in two ways that differ; make sform and qform equal",
    "four_d": "a series of volumes where one is needed; export one volume",
    "gap": "slices are missing, or unevenly spaced; send the whole series",
    "inverted": "the header leaves open whether high values are high signals; export it as MONOCHROME2",
    "length_unit": "the header's unit of length is unknown; convert it again",
    "lesion_cut": "most of the lesion lies outside what is cut out; enlarge the images, or centre them on a gland mask",
    "ambiguous_mask": "the patient has several visits and one mask; name the mask by {patient} and {session}",
    "lossy": "lossy compression has changed the values; export without it",
    "mask_size": "the mask and the picture have different sizes; draw it on the picture as it is",
    "mask_turned": "the picture is turned by its EXIF, and the mask may be or not; save the picture upright",
    "mask_value": "the mask has values that stand for no class; say what they are in source.masks.values",
    "mask_outside": "the mask lies outside the image; check that both are of one study",
    "missing_tag": "header values that place the image are missing; export with complete headers",
    "missing_value": "a feature has no value; fill it in",
    "mixed_orientation": "slices are tilted differently; send one orientation per series",
    "mixed_patient": "one series has several patient identifiers; correct the archive",
    "mixed_size": "slices have different sizes; send the series as acquired",
    "mixed_spacing": "slices have different pixel spacings; send the series as acquired",
    "mixed_values": "some images of a series have a scale that others lack; export the series again",
    "mixed_unit": "slices say different units; export the series again",
    "mosaic": "many slices tiled into one image; export single slices or enhanced images",
    "multi_frame": "a multi-frame image that does not place its frames; export single slices, or narrow the selection",
    "no_geometry": "the header does not say where the image lies; convert it again",
    "no_gland": "no gland mask, or an empty one; draw it",
    "no_label": "no label for it; add one",
    "no_mask": "no mask for it; add one",
    "no_patient": "it does not say whose it is; add the patient's identifier",
    "no_picture": "the table names a picture that is not there; add it, or drop the line",
    "no_signal": "all values are equal; check that the export is whole",
    "no_volume": "it is no volume, and only volumes have a grid of their own; give DICOM or NIfTI",
    "non_orthogonal": "the header's directions are not at right angles; export it again",
    "no_permission": "the file may not be read by this user; give read permission",
    "nothing_selected": "a patient of whom no image is selected; check the selection, or ask for the series",
    "not_a_number": "a feature is not a number; correct the table",
    "not_a_segmentation": "a mask in NIfTI has values and no segments; say source.masks.values, or give DICOM",
    "not_adc": "nothing says that it is an ADC map, or its header says that it is not; narrow the selection, or state "
    "the unit in the settings",
    "not_an_image": "it holds no slices; narrow the selection, unless it lies beside images that are read",
    "not_ct": "the header says that it is no CT, and the run is for CT; narrow the selection",
    "not_axial": "not an axial series; send the axial one",
    "not_collinear": "slices do not lie on a straight line; send one acquisition per series",
    "not_finite": "values are NaN or infinite; set them to 0 in the export",
    "outside_range": "the label lies outside the declared range; correct it, or declare another range",
    "packed": "a packed DICOM file; unpack it",
    "several_frames": "an animation, or several pages; one picture is needed",
    "several_volumes": "several images at each position; narrow the selection down to one",
    "single_slice": "one slice only; send the whole series",
    "still_written": "the file changed while it was read; let the transfer end, then run again",
    "too_large": "larger than anything that is read; check the header",
    "transfer_syntax": "compressed in a way that cannot be read here; export it uncompressed",
    "unit_contradiction": "the settings and the header name different units; correct the settings",
    "unit_implausible": "in the stated unit the values are not those of tissue; check that it is an ADC map",
    "unit_unknown": "an ADC map without a unit, or in one that is none of diffusion; state the unit in the settings",
    "unknown_category": "a category that the settings' vocabulary does not have; correct the table or the settings",
    "unreadable": "the file, or the line, is damaged; copy or export it again",
    "value_type": "values of a type that is not read; convert to numbers",
    "vanished": "the file was there and is gone; let the transfer end, then run again",
}


class Quarantine(NamedTuple):
    """A study that was not used. study: its code. meaning: what is wrong and what to do, in fixed words."""

    study: str
    reason: str
    meaning: str


def list_quarantine(hospital: Hospital, rejected: Sequence[Rejected]) -> list[Quarantine]:
    """The rejected studies, named by their codes."""
    key = hospital.key()
    return [Quarantine(study_code(key, study.study), study.reason, MEANING.get(study.reason, "")) for study in rejected]


def study_code(key: bytes, study: str) -> str:
    """A stable code for a study, which can be linked to it only with the hospital's key."""
    return f"study-{make_pseudonym(key, f'study {study}')[:8]}"


def add_to_linkage(hospital: Hospital, rejected: Sequence[Rejected], patients: Mapping[str, str]) -> None:
    """Add to linkage.json; entries of earlier runs stay. patients: pseudonym -> identifier."""
    folder = DiskFolder(hospital.root)
    known = read_linkage(hospital)
    key = hospital.key()
    studies = {
        study_code(key, study.study): {"study": study.study, "reason": study.reason, "detail": study.detail}
        for study in rejected
    }
    merged = {
        "patients": {**known.get("patients", {}), **patients},
        "studies": {**known.get("studies", {}), **studies},
    }
    folder.write(LINKAGE, json.dumps(merged, indent=1, sort_keys=True).encode())


def write_accounts(hospital: Hospital, accounts: Sequence[Account]) -> None:
    """Write what became of each file, beside linkage.json and as secret; replaces that of an earlier reading."""
    DiskFolder(hospital.root).write(ACCOUNTS, format_accounts_csv(accounts))


def read_linkage(hospital: Hospital) -> dict[str, dict[str, object]]:
    """The contents of linkage.json, `patients` and `studies`; empty if it is missing or damaged."""
    folder = DiskFolder(hospital.root)
    try:
        content = json.loads(folder.read(LINKAGE)) if folder.has(LINKAGE) else {}
    except ValueError:
        content = {}
    return content if isinstance(content, dict) else {}
