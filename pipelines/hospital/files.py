"""A hospital's files: where they are, and whether they changed (`survey`). A phantom's files are written first."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from federation.origins import code_identity
from pipelines.data.archive_cache import (
    ODD,
    Arbitrary,
    find_matching_series,
    is_copied,
    load_cached_series,
    refresh_cache,
)
from pipelines.data.archive_sources import (
    ArchiveSource,
    DicomNodeSource,
    DicomWebSource,
    build_folder_source,
    describe_query,
)
from pipelines.data.cohort import survey
from pipelines.data.readers import is_reader, resolve_source
from pipelines.data.requirements import list_needed_paths
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels, NiftiSource, TableLabels
from pipelines.data.sources import Files as Source
from pipelines.hospital.hospital import Context, Done, Hospital
from pipelines.hospital.witness import check_witness
from pipelines.loader.validation import to_plain
from pipelines.pacs.archive import Denied, Unreachable
from pipelines.pacs.opening import Missing, open_archive
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.survey import Survey, Surveyed
from pipelines.runs.store import DiskFolder, digest_json, short_digest
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.dp.events import describe_event
from privacy.message import Json, as_mapping, whole_of
from privacy.release.form import ABSENT, value_or_none
from privacy.release.gate import Refused
from privacy.settings_error import SettingsError
from privacy.system_errors import of_machine

ARCHIVE_ERRORS = (Unreachable, Denied, Missing, SettingsError, Arbitrary)
"""Why nothing can be had from an archive."""
NOT_OF_COHORT = ("policy", "home", "methods", "work", "images", "model", "readers", "veto", "unlabelled")
"""Settings of a hospital that do not change its cohort; how images are made is asked with it."""
SELECTED = {"adc": {"ImageType": "ADC"}, "t2w": {"ImageType": "ORIGINAL"}}
"""By a phantom's contrast."""


class Files(NamedTuple):
    """Settings of a hospital's images, labels and gland masks."""

    source: Source
    labels: MaskLabels | TableLabels | None
    gland: GlandMask | None


def survey_files(hospital: Hospital, context: Context[Survey]) -> Done[Surveyed]:
    """Number of files, and a keyed digest of their names, sizes, times and settings.

    Raises:
        Refused: as `check_witness` and `files_of`.
    """
    check_witness(hospital, value_or_none(context.question.witness))
    settings = settings_of(hospital)
    files = files_of(hospital, again=True)
    _check_exist(files)
    file_survey = survey(*files)
    if not file_survey["files"]:
        raise Refused("no_files")
    surveyed_facts = {"files": file_survey["digest"], "settings": cohort_settings(settings)}
    # Keyed, because a plain digest would allow to test guesses of file names.
    keyed = hmac.new(hospital.key(), digest_json(surveyed_facts).encode(), "sha256").hexdigest()
    policy = settings.policy
    reply = Surveyed(
        digest=keyed,
        files=ABSENT if policy.promises else whole_of(file_survey, "files"),  # it changes with a patient, as bytes do
        bytes=ABSENT if policy.promises else whole_of(file_survey, "bytes"),
        requests=[*policy.requests],
        algorithms=None if policy.algorithms is None else [*policy.algorithms],
        private=policy.promises,
        plugins=dict(policy.plugins) if policy.plugins else ABSENT,
        recipients=[*policy.recipients],
    )
    return Done(reply, describe_event(hospital.counts))


def cohort_settings(settings: SiteSettings) -> dict[str, Json]:
    """The settings on which a hospital's cohort depends, without null or empty ones, so that a new optional setting
    does not invalidate existing cohorts.
    """
    all_settings = as_mapping(_drop_empty(to_plain(settings)))
    if isinstance(settings.source, DicomWebSource | DicomNodeSource):
        folder_source = build_folder_source(settings.source, ".")
        all_settings = {
            **all_settings,
            "source": _drop_empty({**as_mapping(to_plain(folder_source)), "folder": describe_query(settings.source)}),
        }
    all_settings |= code_identity(settings.source)
    all_settings = {**all_settings, "source": _drop_defaults(as_mapping(all_settings["source"]), ("contrast", "adc"))}
    return {key: value for key, value in all_settings.items() if key not in NOT_OF_COHORT}


def _drop_defaults(source: Mapping[str, Json], *defaults: tuple[str, Json]) -> dict[str, Json]:
    """A phantom's settings without those that have the value they had before there was a choice."""
    return {key: value for key, value in source.items() if (key, value) not in defaults}


def _drop_empty(value: Json) -> Json:
    """The value without null or empty members, at any depth."""
    if not isinstance(value, dict):
        return value
    inner = {key: _drop_empty(each) for key, each in value.items()}
    return {key: each for key, each in inner.items() if each is not None and each not in ("", [], {})}


def files_of(hospital: Hospital, *, again: bool = False, checked: bool = True) -> Files:
    """The hospital's files; a phantom's are written first, once. again: whether an archive is asked what is new, of
    which there is a copy already. checked: whether a phantom's are as they were written; False where only their
    settings are asked for, and a cohort was read from them before.

    Raises:
        Refused: `no_files`, `no_archive`, `bad_archive`.
    """
    settings = settings_of(hospital)
    if isinstance(settings.source, DicomWebSource | DicomNodeSource):
        folder = _copy_archive(hospital, settings.source, again=again)
        return Files(build_folder_source(settings.source, str(folder)), settings.labels, settings.gland)
    if isinstance(settings.source, Elsewhere):
        raise Refused("no_files")
    if is_reader(settings.source):
        return Files(_write_package_source(hospital, settings.source, again=again), settings.labels, settings.gland)
    if not isinstance(settings.source, PhantomSource):
        return Files(settings.source, settings.labels, settings.gland)
    folder = _write_phantom(hospital, settings.source)
    files = list_phantom_files(settings.source, folder)
    if not checked:
        return files
    written = DiskFolder(hospital.root / "phantom")
    mark = f"{folder.name}.txt"
    known = written.read(mark).decode() if written.has(mark) else None
    if known is None or known != survey(*files)["digest"]:  # never written, or changed since
        shutil.rmtree(folder, ignore_errors=True)
        from pipelines.phantom.files import write  # writers of DICOM and NIfTI are slow to import

        write(settings.source, folder)
        written.write(mark, str(survey(*files)["digest"]).encode())
    return files


def list_phantom_files(source: PhantomSource, folder: Path) -> Files:
    """Where `phantom.files.write` writes in this folder."""
    images, masks = str(folder / "images"), folder / "masks"
    labels = (
        MaskLabels(folder=str(masks / "lesion"))
        if source.labels == "significant"
        else TableLabels(file=str(folder / "labels.csv"), slice="slice")
    )
    return Files(
        DicomSource(kind="dicom", folder=images, select=SELECTED[source.contrast])
        if source.format == "dicom"
        else NiftiSource(kind="nifti", folder=images),
        labels,
        GlandMask(folder=str(masks / "gland")),
    )


def _copy_archive(hospital: Hospital, source: ArchiveSource, *, again: bool) -> Path:
    """The folder with a copy of what matches in an archive."""
    folder = hospital.vault / "archive" / short_digest(digest_json(describe_query(source)))
    try:
        copy = refresh_cache(source, folder) if again or not is_copied(folder) else load_cached_series(folder)
    except (Unreachable, Denied, Missing, SettingsError) as error:
        raise Refused("no_archive") from error
    except Arbitrary as error:
        raise Refused("bad_archive") from error
    out = sum(copy.left_out.values())
    if out > settings_of(hospital).max_rejected * max(1, out + copy.series):
        text = f"{out} of {out + copy.series} series cannot be used, and max_rejected allows fewer: {folder / ODD}"
        raise Refused("bad_archive") from ValueError(text)
    return copy.folder


def _write_package_source(hospital: Hospital, source: Any, *, again: bool) -> Source:
    """The source as which a package's reader wrote its images; `again`: it writes what is there now.

    Raises:
        Refused: `bad_source`: the reader failed.
    """
    folder = hospital.vault / "read" / short_digest(digest_json({"source": to_plain(source), **code_identity(source)}))
    mark = folder.with_suffix(".done")
    if again or not mark.exists():
        before = _digest_files(folder) if mark.exists() else {}
        mark.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            source.write(folder)
        except Exception as error:  # its own code
            if of_machine(error):
                raise
            raise Refused("bad_source") from error
        for path, (code, changed) in before.items():
            if path.is_file() and _file_digest(path) == code:  # it did not change, whoever wrote it again
                os.utime(path, ns=(changed, changed))
        mark.touch()
    written_source: Source = resolve_source(source, str(folder))
    return written_source


def _digest_files(folder: Path) -> dict[Path, tuple[str, int]]:
    """Digest and time of each file."""
    return {path: (_file_digest(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def _file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def in_archive(source: ArchiveSource) -> int:
    """How many series match; nothing is copied.

    Raises:
        Unreachable, Denied, Missing, SettingsError, Arbitrary.
    """
    with open_archive(source) as archive:
        return len(find_matching_series(archive, source)[0])


def is_unwritten(hospital: Hospital) -> bool:
    """Whether this is a phantom hospital whose files no run has written yet."""
    source = settings_of(hospital).source
    return isinstance(source, PhantomSource) and not _write_phantom(hospital, source).is_dir()


def _write_phantom(hospital: Hospital, source: PhantomSource) -> Path:
    """The folder of a phantom hospital's files."""
    settings = _drop_defaults(as_mapping(to_plain(source)), ("labels", "significant"), ("contrast", "adc"))
    return hospital.root / "phantom" / short_digest(digest_json(settings))


def _check_exist(files: Files) -> None:
    """Check that folders and tables exist. Raises: Refused: `no_folder`, `no_labels`, `no_gland`."""
    for requirement in list_needed_paths(*files):
        if not requirement.exists:
            raise Refused(requirement.code) from FileNotFoundError(str(requirement.problem))


def settings_of(hospital: Hospital) -> SiteSettings:
    """The settings of a hospital that has files. Raises: Refused: `no_files`."""
    if hospital.settings is None:
        raise Refused("no_files")
    return hospital.settings
