"""Detect sites in a folder of DICOM series or NIfTI files, with the images to use and matching labels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pipelines.data.sources import KIND
from pipelines.discovery.found import Discovery, Group, Site
from pipelines.discovery.images import Nifti, Series
from pipelines.discovery.labels import MasksFound, find_masks, find_tables
from pipelines.discovery.places import Image, Place, find_places
from pipelines.discovery.safe import Secrets, known_words

NAMED = "the name of the labels' file or folder holds a patient's name or identifier; rename it"
NO_ADC = (
    "no ADC map and no diffusion-weighted series with several b-values was found; say in source which series to take, "
    "as in select: {SeriesDescription: t2}, and in images values: standardized"
)
UNSAID = (
    "nothing says that these files are ADC maps, and without a word they are refused; add to source their unit, as in "
    "unit: 1e-6 mm2/s, or, if they are something else, to images values: standardized"
)
NAME_IN_FOLDER = "the name of the images' folder holds a patient's name or identifier; rename it"
NO_LABELS = "no labels were found for these patients: neither a table of 0 and 1 nor a folder of masks names them"


def discover_dicom(
    root: Path, series: Sequence[Series], files: Sequence[Path], nifti: Sequence[Nifti], secrets: Secrets
) -> Discovery:
    """Sites of a folder of DICOM. files: all files that may contain labels."""
    images = [Image(path, each.patient) for each in series for path in each.paths]
    found_places = find_places(root, images, secrets)
    sites, doubts = [], _dicom_doubts(series)
    for place in found_places:
        mine = [each for each in series if any(path.is_relative_to(place.folder) for path in each.paths)]
        chosen, source, doubts_of_choice = _chosen_series(mine, str(place.folder))
        patients = {each.patient for each in chosen}
        labels, gland, other_labels, missing = _find_labels(place, found_places, patients, files, nifti, secrets)
        sites.append(
            Site(
                name=place.name,
                root=place.root,
                source=source,
                labels=labels,
                gland=gland,
                alternatives=other_labels,
                patients=len(patients),
                studies=len({each.study for each in chosen}),
                images=sum(each.images for each in chosen),
                scanners=Counter(secrets.shown(each.scanner) for each in chosen),
                missing=(*doubts_of_choice, *missing),
            )
        )
        doubts += _choice_doubts(place.name, mine, chosen)
    doubts = [*_list_renamed(found_places), *doubts]
    return Discovery("dicom", tuple(sites), (*doubts, *_shared_patients(series, found_places)), _series_rows(series))


def _list_renamed(found_places: Sequence[Place]) -> list[str]:
    """Doubts about names of hospitals that were changed."""
    return [place.doubt for place in found_places if place.doubt]


def discover_volumes(root: Path, nifti: Sequence[Nifti], files: Sequence[Path], secrets: Secrets) -> Discovery:
    """Sites of a folder of NIfTI files."""
    images = [each for each in nifti if each.what != "mask"]
    found_places = find_places(root, [Image(each.path, each.patient) for each in images], secrets)
    sites = []
    for place in found_places:
        mine = [each for each in images if each.path.is_relative_to(place.folder)]
        chosen, source, doubts_of_choice = _chosen_files(mine, place.folder, secrets)
        patients = {each.patient for each in chosen}
        labels, gland, other_labels, missing = _find_labels(place, found_places, patients, files, nifti, secrets)
        size = (len(patients), len(chosen), len(chosen))
        sites.append(
            Site(
                place.name,
                place.root,
                source,
                labels,
                gland,
                other_labels,
                *size,
                missing=(*doubts_of_choice, *missing),
            )
        )
    groups = Counter((each.what, known_words(f"{each.path.parent.name} {each.word}")) for each in nifti)
    rows = tuple((text, "NIfTI", what, "", "", f"{count:,}") for (what, text), count in sorted(groups.items()))
    return Discovery("nifti", tuple(sites), tuple(_list_renamed(found_places)), rows)


def _chosen_series(series: Sequence[Series], folder: str) -> tuple[list[Series], Group, list[str]]:
    """ADC maps, or diffusion-weighted images of several b-values; their source settings; and missing settings."""
    source: dict[str, object] = {"kind": "dicom", "folder": folder}
    for what in ("adc", "dwi"):
        chosen = [each for each in series if each.what == what and not each.tiling]
        b_values = {b for each in chosen for b in each.b_values}
        if chosen and (what == "adc" or len(b_values) > 1):
            source |= {"select": {KIND: what}} if len(chosen) < len(series) else {}
            source |= {"derive": "adc"} if what == "dwi" else {}
            return chosen, source, []
    return list(series), source, [NO_ADC]


def _chosen_files(images: Sequence[Nifti], folder: Path, secrets: Secrets) -> tuple[list[Nifti], Group, list[str]]:
    """The only group of files, or the only one of ADC maps; its source settings; and missing settings."""
    groups: dict[tuple[Path, str, bool], list[Nifti]] = defaultdict(list)
    for each in images:
        groups[folder if each.bids else each.path.parent, each.word, each.path.name.lower().endswith(".gz")].append(
            each
        )
    adc = {key: group for key, group in groups.items() if group[0].what == "adc"}
    left = adc if len(adc) == 1 else groups
    if len(left) != 1:
        text = "the images lie in several folders, or have several endings, and none is called adc alone"
        return list(images), {"kind": "nifti", "folder": str(folder)}, [text]
    (((parent, word, _), chosen),) = left.items()
    ending = chosen[0].ending
    source: dict[str, object] = {"kind": "nifti", "folder": str(parent), "pattern": f"*{ending}"}
    if word and not all(each.bids for each in chosen):
        source["patient"] = f"^(.+){ending.partition('.')[0]}$"
    sentences = [NAME_IN_FOLDER] if secrets.tells(parent.name) else []
    return chosen, source, sentences if adc else [*sentences, UNSAID]


def _find_labels(
    place: Place,
    found_places: Sequence[Place],
    patients: Collection[str],
    files: Sequence[Path],
    nifti: Sequence[Nifti],
    secrets: Secrets,
) -> tuple[Group | None, Group | None, tuple[Group, ...], list[str]]:
    """Labels and gland masks for a site, alternative labels, and missing settings."""
    other_folders = [each.root for each in found_places if each is not place and each.root != place.root]
    mine = [path for path in files if not any(path.is_relative_to(folder) for folder in other_folders)]
    own_images = [each for each in nifti if not any(each.path.is_relative_to(folder) for folder in other_folders)]
    masked = find_masks(own_images, mine, patients)
    glands = [each for each in masked if each.gland and not each.lesion]
    lesions = [each for each in masked if not each.gland or each.lesion]
    tabled = find_tables(mine, patients)
    sure: list[Group] = [_mask_group(each, "mask") for each in lesions if each.lesion]
    for table in tabled:
        group: dict[str, object] = {"kind": "table", "file": str(table.file), "patient": table.patient}
        group |= {"label": table.labels[0]} | ({"slice": table.slice} if table.slice else {})
        if table.certain:
            sure.append(group)
    # A folder of masks without a stated structure comes last: it may show the gland.
    sure += [_mask_group(lesions[0], "mask")] if len(lesions) == 1 and not lesions[0].lesion else []
    gland = _mask_group(glands[0], None) if glands else None
    named_groups = [group for group in sure if any(secrets.tells(str(value)) for value in _list_values(group, place))]
    sure = [group for group in sure if group not in named_groups]
    if sure:
        return sure[0], gland, tuple(sure[1:]), []
    unsure = next((table for table in tabled if not table.certain), None)
    text = NAMED if named_groups else NO_LABELS
    if unsure is not None:
        columns = ", ".join(secrets.shown(column) for column in unsure.labels)
        text = f"several columns of a table could be the label: {columns}; choose one"
    return None, gland, (), [text]


def _list_values(group: Group, place: Place) -> Iterable[object]:
    """The values of a group of settings, without the folder that the user gave."""
    for key, value in group.items():
        path = Path(str(value))
        inside = key in ("folder", "file", "names") and path.is_relative_to(place.root)
        yield path.relative_to(place.root) if inside else path.name if key in ("folder", "file", "names") else value


def _mask_group(masks_found: MasksFound, kind: str | None) -> Group:
    """Settings of a folder of masks."""
    group: dict[str, object] = {"kind": kind} if kind else {}
    group["folder"] = str(masks_found.folder)
    group |= {"pattern": masks_found.pattern} if masks_found.pattern != "{patient}.nii.gz" else {}
    return group | ({"names": str(masks_found.names)} if masks_found.names else {})


def _series_rows(series: Sequence[Series]) -> tuple[tuple[str, ...], ...]:
    """Kinds of series: description, modality, probable kind, b-values, series, images."""
    groups: dict[tuple[str, ...], list[Series]] = defaultdict(list)
    for each in series:
        b_values = " ".join(f"{b:g}" for b in sorted(each.b_values)[:8])
        groups[known_words(each.description), each.modality, each.what, b_values].append(each)
    return tuple(
        (*key, f"{len(group):,}", f"{sum(each.images for each in group):,}") for key, group in sorted(groups.items())
    )


def _dicom_doubts(series: Sequence[Series]) -> list[str]:
    """What a person should check in all series of a folder."""
    counts = {
        "series have no PatientID; they cannot be used": sum(not each.patient for each in series),
        "series hold images of several orientations (a localizer?); they are refused": sum(
            each.orientations > 1 for each in series
        ),
        "images occur twice (same SOPInstanceUID); their series are refused": sum(each.doubled for each in series),
    }
    counts |= {
        f"series are a {tiling}, many slices tiled into one image; they are not read: turn it off in the protocol's "
        "export, or convert them with dcm2niix": sum(each.tiling == tiling for each in series)
        for tiling in sorted({each.tiling for each in series} - {""})
    }
    return [f"{count:,} {text}" for text, count in counts.items() if count]


def _choice_doubts(site: str, series: Sequence[Series], chosen: Sequence[Series]) -> list[str]:
    """What a person should check in the series that were chosen."""
    studies = Counter((each.patient, each.study) for each in chosen)
    several = sum(count > 1 for count in studies.values())
    without = len({each.patient for each in series} - {each.patient for each in chosen})
    doubts = [f"{site}: {several:,} studies have several such series; those on one grid are refused"] if several else []
    return doubts + ([f"{site}: {without:,} patients have no such series"] if without else [])


def _shared_patients(series: Sequence[Series], found_places: Sequence[Place]) -> list[str]:
    """Patients who are in several hospitals' folders."""
    folders_by_patient: dict[str, set[Path]] = defaultdict(set)
    for each in series:
        folders_by_patient[each.patient] |= {
            p.root for p in found_places if any(path.is_relative_to(p.root) for path in each.paths)
        }
    shared = sum(len(where) > 1 for where in folders_by_patient.values())
    return (
        [f"{shared:,} patients lie in several hospitals' folders; hospitals must not share patients"] if shared else []
    )
