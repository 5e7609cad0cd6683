"""A translator that a hospital can use: one sealed file, which also says what the translator learnt from.

It is written where the translator was trained, at the hospital, and stays there; `pipelines.translate` reads it. Like a
model that is ready (`pipelines.models.file`) it names no folder, and of what selects DICOM files technical
words only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from federation.origins import package_facts, read_permitted_packages, refuse_other_code
from federation.registry import NotPermitted, permit_packages
from harmonize.scale import Scale
from harmonize.translation import AnyTranslator
from pipelines.data.images import IMAGES, AnyImages
from pipelines.data.sources import KIND, SOURCE, Files
from pipelines.loader.validation import to_plain
from privacy.folder import Folder
from privacy.formats import LaterVersion, check_format
from privacy.message import Json, Malformed, Message, Params, from_bytes, seal_parts, to_bytes, unseal_parts
from privacy.settings_error import words_of

TECHNICAL = (
    *("Modality", "ImageType", "FrameType", "SeriesDescription", "ProtocolName", "SequenceName", "ScanningSequence"),
    *(
        KIND,
        "DiffusionBValue",
        "EchoTime",
        "EffectiveEchoTime",
        "RepetitionTime",
        "MagneticFieldStrength",
        "Manufacturer",
    ),
)
"""Keywords of `select` that cannot name anybody."""


TRANSLATORS = "translators"
FOLDER = "translator"
"""Name of a translator that lies beside the cohort that it made."""
FORMAT = 1
LONGEST_NAME = 64  # characters of a site's or a label's name
SETTINGS: TypeAdapter[AnyTranslator] = TypeAdapter(AnyTranslator)
SCALE: TypeAdapter[Scale] = TypeAdapter(Scale)


@dataclass(frozen=True)
class TranslatorFile:
    """A usable translator.

    scale: between the unit of `images` and network space. source: how the training images were found, its folder left
    out. gland: whether they were centred on a gland mask. vetoed: names of the vetoes against it; empty = it may be
    used. digest: 16 hexadecimal digits of the file's sha256. facts: all that the file says, with its origin.
    """

    site: str
    label: str
    settings: AnyTranslator
    params: Params
    scale: Scale
    images: AnyImages
    source: Files
    gland: bool
    vetoed: tuple[str, ...]
    digest: str
    facts: Mapping[str, Json]


def write_translator(
    folder: Folder,
    label: str,
    *,
    site: str,
    settings: AnyTranslator,
    params: Params,
    scale: Scale,
    images: AnyImages,
    source: Files,
    gland: bool,
    vetoed: Sequence[str],
    origin: Mapping[str, Json],
) -> str:
    """Write `<label>.safetensors` into a folder, and return its digest (see `TranslatorFile`).

    origin: further facts, such as the run, the cohort's digest and the quality that was measured.

    Raises:
        ValueError: a name that is empty or too long, or a fact that is not finite JSON.
        OSError: the disk.
    """
    wrong = [
        f"{what} must have 1 to {LONGEST_NAME} characters, found {len(name)}"
        for what, name in (("site", site), ("label", label))
        if not 0 < len(name) <= LONGEST_NAME
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    facts: dict[str, Json] = {
        "origin": dict(origin),
        "format": FORMAT,
        "site": site,
        "label": label,
        "translator": to_plain(settings),
        "scale": to_plain(scale),
        "images": to_plain(images),
        "source": remove_places(source),
        "gland": gland,
        "vetoed": list(vetoed),
        **package_facts(settings),
    }
    data = seal_parts(to_bytes(Message(params, facts)))
    folder.write(f"{label}.safetensors", data)
    return _file_digest(data)


def read_translator(path: Path) -> TranslatorFile:
    """Read such a file.

    Raises:
        ValueError: it is not one, is damaged, or was written by a later version.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        message = from_bytes(unseal_parts(data))
        facts = message.facts
        check_format(facts["format"], FORMAT, f"{path}, a translator,")
        with permit_packages(read_permitted_packages(facts), unless_set=True):
            settings = SETTINGS.validate_json(json.dumps(facts["translator"]), strict=True)
            refuse_other_code(facts, settings)
        return TranslatorFile(
            site=_parse_text(facts["site"]),
            label=_parse_text(facts["label"]),
            settings=settings,
            params=message.tensors,
            scale=SCALE.validate_json(json.dumps(facts["scale"]), strict=True),
            images=IMAGES.validate_json(json.dumps(facts["images"]), strict=True),
            source=SOURCE.validate_json(json.dumps(facts["source"]), strict=True),
            gland=bool(facts["gland"]),
            vetoed=_parse_names(facts["vetoed"]),
            digest=_file_digest(data),
            facts=facts,
        )
    except LaterVersion:
        raise
    except (Malformed, NotPermitted, KeyError, TypeError, ValueError) as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else words_of(error)
        raise ValueError(
            f"{path} is not a translator ({what}); give a file of a site's {TRANSLATORS}/ folder, "
            f"runs/<name>/sites/<site>/{TRANSLATORS}/<method>.safetensors"
        ) from error


def _file_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _parse_text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a name must be text, found {type(value).__name__}")
    return value


def _parse_names(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"vetoed must be a list, found {type(value).__name__}")
    return tuple(map(_parse_text, value))


def remove_places(source: Files) -> dict[str, Json]:
    """Its settings without folders, files and named patients, and of what selects DICOM files the technical words."""
    plain = to_plain(source)
    settings = dict(plain) if isinstance(plain, dict) else {}
    settings |= {key: "." for key in ("folder", "file", "table") if settings.get(key) is not None}
    settings |= {"where": {}} if "where" in settings else {}
    masks = settings.get("masks")
    if isinstance(masks, dict):
        settings["masks"] = {**masks, "folder": "."} | ({"names": None} if "names" in masks else {})
    select = settings.get("select")
    if isinstance(select, dict):
        settings["select"] = {keyword: text for keyword, text in select.items() if keyword in TECHNICAL}
    return settings
