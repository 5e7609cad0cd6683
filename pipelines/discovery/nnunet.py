"""Detect folders of nnU-Net's datasets, of versions 1 and 2: dataset.json, imagesTr/NAME_0000.nii.gz and
labelsTr/NAME.nii.gz, or pictures in place of volumes.

The format is described in nnU-Net's documentation/dataset_format.md. Cases count as patients. What has no counterpart
here - several channels of a volume, other kinds of files - is refused in words. Regions that share labels become a
task's regions, over classes of the labels that lie in the same ones.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.label_maps import MOST_MASK_CLASSES
from pipelines.data.regions import find_region_problems
from pipelines.data.sources import BACKGROUND, CASE, FIRST_CHANNEL, IGNORE, LARGEST_VALUE
from pipelines.discovery.found import Discovery, Group, Site, Sort
from pipelines.discovery.places import site_names
from pipelines.discovery.safe import known_words, secrets_of
from pipelines.loader.names import is_name

DESCRIPTION, IMAGES, LABELS = "dataset.json", "imagesTr", "labelsTr"
CHANNEL = re.compile(r"_([0-9]{4})$")
VOLUMES, PICTURES = (".nii.gz", ".nii"), (".png", ".bmp", ".tif")
"""Endings of files."""
COLOURS = 3
LONGEST = 80  # characters of a class's name


@dataclass(frozen=True)
class Dataset:
    """One of nnU-Net's folders. values: class -> its labels, ascending, and that of `ignore`. regions: region -> its
    classes, where regions share labels. ending: of files. channels: their names, as they stand there: one, or the
    colours of pictures. cases: names of those with a label map.
    """

    folder: Path
    values: Mapping[str, tuple[int, ...]]
    regions: Mapping[str, tuple[str, ...]]
    ending: str
    channels: tuple[str, ...]
    cases: tuple[str, ...]
    unlabelled: int

    @property
    def classes(self) -> tuple[str, ...]:
        """Those that are learnt."""
        return tuple(name for name in self.values if name != IGNORE)

    @property
    def is_of_pictures(self) -> bool:
        """Whether its files are pictures."""
        return self.ending in PICTURES


def discover_nnunet(folder: Path) -> Discovery | None:
    """nnU-Net's folder as one hospital, or a folder of them as a hospital each; None if it is neither.

    Raises:
        ValueError: it holds what no run here can learn; all problems at once. No case is named.
    """
    places = _find_datasets(folder)
    if not places:
        return None
    problems: list[str] = []
    datasets = [dataset for place in places if (dataset := _read_dataset(place, problems)) is not None]
    regions = {
        frozenset((name, frozenset(members)) for name, members in dataset.regions.items()) for dataset in datasets
    }
    if not problems and (len({frozenset(dataset.classes) for dataset in datasets}) > 1 or len(regions) > 1):
        contents = "; ".join(f"{each.folder}: {', '.join([*each.regions] or each.classes)}" for each in datasets)
        problems.append(
            f"hospitals of one run have classes of the same names in the same regions, found {contents}; give one "
            "of these folders"
        )
    kinds = {(dataset.is_of_pictures, len(dataset.channels)) for dataset in datasets}
    if not problems and len(kinds) > 1:
        contents = "; ".join(f"{each.folder}: {len(each.channels)} channels, *{each.ending}" for each in datasets)
        problems.append(f"hospitals of one run have images of one kind, found {contents}; give one of these folders")
    if problems:
        raise ValueError("; ".join(problems))
    secrets = secrets_of(case for dataset in datasets for case in dataset.cases)
    called = site_names([dataset.folder.resolve().name for dataset in datasets], secrets)
    sites = [_build_site(name, dataset) for (name, _), dataset in zip(called, datasets, strict=True)]
    doubts = [doubt for _, doubt in called if doubt]
    doubts += [
        f"{site.name}: {dataset.unlabelled:,} images have no label map in {LABELS}; they are not used"
        for site, dataset in zip(sites, datasets, strict=True)
        if dataset.unlabelled
    ]
    rows = tuple(
        (
            known_words(" ".join(dataset.channels)),
            "pictures" if dataset.is_of_pictures else "NIfTI",
            "nnU-Net",
            "",
            "",
            f"{len(dataset.cases):,}",
        )
        for dataset in datasets
    )
    task: dict[str, Any] = {"kind": "segmentation", "target": "masks", "classes": [*datasets[0].classes]}
    if datasets[0].regions:
        task["regions"] = {region: list(members) for region, members in datasets[0].regions.items()}
    sort: Sort = "pictures" if datasets[0].is_of_pictures else "nifti"
    return Discovery(sort, tuple(sites), tuple(doubts), rows, task, channels=len(datasets[0].channels))


def is_ct(discovery: Discovery) -> bool:
    """Whether all images are CT, by the name of their channel, which decides the same in nnU-Net."""
    return bool(discovery.rows) and all(row[0] == "ct" for row in discovery.rows)


def _find_datasets(folder: Path) -> list[Path]:
    """The folder itself, or those in it, that are nnU-Net's."""
    if _is_dataset(folder):
        return [folder]
    return sorted(each for each in folder.iterdir() if each.is_dir() and _is_dataset(each))


def _is_dataset(folder: Path) -> bool:
    """Whether a folder has what makes one of nnU-Net's."""
    try:
        return (folder / DESCRIPTION).is_file() and (folder / IMAGES).is_dir()
    except OSError:  # it may not be read
        return False


def _build_site(name: str, dataset: Dataset) -> Site:
    """A hospital with the cases of one folder."""
    masks = {
        "folder": str(dataset.folder / LABELS),
        "pattern": f"{CASE}{dataset.ending}",
        "values": {each: list(values) for each, values in dataset.values.items()},
    }
    folder = str(dataset.folder / IMAGES)
    source: Group
    if dataset.is_of_pictures:
        source = {"kind": "picture", "folder": folder, "table": None, "masks": masks}
    else:
        names = {"pattern": f"*{FIRST_CHANNEL}{dataset.ending}", "patient": f"^(.+){FIRST_CHANNEL}$"}
        source = {"kind": "nifti", "folder": folder, **names, "masks": masks}
    count = len(dataset.cases)
    return Site(name, dataset.folder, source, None, None, patients=count, studies=count, images=count)


def _read_dataset(folder: Path, problems: list[str]) -> Dataset | None:
    """The contents of a folder; None if it has problems, which are added."""
    path = folder / DESCRIPTION
    try:
        described = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        problems.append(f"{path} cannot be read ({error}); write it as nnU-Net's documentation says")
        return None
    if not isinstance(described, dict):
        problems.append(f"{path} holds no JSON object; write it as nnU-Net's documentation says")
        return None
    channels, classes = _list_channels(described), _read_labels(described.get("labels"))
    ending = str(described.get("file_ending", VOLUMES[0]))
    texts = [
        f"{path}: {text}"
        for text in (*_channel_problems(channels, has_colours=ending in PICTURES), *_label_problems(classes))
    ]
    if ending not in (endings := (*VOLUMES, *PICTURES)):
        texts.append(f"{path}: file_ending is {ending!r}, and {', '.join(endings)} are read; convert the images")
        problems += texts
        return None
    images, labels = (_list_stems(folder / each, ending) for each in (IMAGES, LABELS))
    cases = [CHANNEL.sub("", stem) for stem in images if stem.endswith(FIRST_CHANNEL)]
    labelled = tuple(sorted(set(cases) & set(labels)))
    texts += [f"{folder}: {text}" for text in _file_problems(images, labelled, ending)]
    problems += texts
    if texts:
        return None
    values, regions = _split_regions(classes)
    return Dataset(folder, values, regions, ending, tuple(channels), labelled, len(cases) - len(labelled))


def _list_channels(described: Mapping[str, Any]) -> list[str]:
    """Names of the channels; of version 1 they are modalities."""
    channels = described.get("channel_names", described.get("modality"))
    return [str(name) for name in channels.values()] if isinstance(channels, dict) else []


def _channel_problems(channels: Sequence[str], *, has_colours: bool) -> Iterator[str]:
    """Why the channels cannot be used. has_colours: whether one file may hold three."""
    if not channels:
        yield 'channel_names: missing; name the images\' one channel, as in {"0": "T2"}'
    elif has_colours and len(channels) not in (1, COLOURS):
        yield f"channel_names: {len(channels)} channels, and a picture has 1 or {COLOURS}; convert the pictures"
    elif not has_colours and len(channels) > 1:
        yield (
            f"channel_names: {len(channels)} channels, and a study has one image here; give a dataset of one channel, "
            'as in {"0": "T2"}'
        )


def _read_labels(labels: object) -> list[tuple[str, tuple[int, ...]]]:
    """Classes, in the order of their labels, each with its labels, ascending; [] if they cannot be read. Version 1
    writes label -> class.
    """
    if not isinstance(labels, dict):
        return []
    is_first_version = all(key.isdecimal() for key in labels)
    pairs = [(name, key) for key, name in labels.items()] if is_first_version else [*labels.items()]
    classes: list[tuple[str, tuple[int, ...]]] = []
    for name, value in pairs:
        try:
            values = tuple(sorted({int(str(number)) for number in (value if isinstance(value, list) else [value])}))
        except ValueError:
            return []
        classes += [] if name == BACKGROUND and values == (0,) else [(_name_class(str(name)), values)]
    is_shared = any(count > 1 for count in Counter(value for _, several in classes for value in several).values())
    return classes if is_shared else sorted(classes, key=lambda pair: pair[1])


def _split_regions(
    labels: Sequence[tuple[str, tuple[int, ...]]],
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[str, ...]]]:
    """Classes that exclude each other, with their labels, in the order of these; and the regions, each with its
    classes, none where no two share a label. A class is of all labels that lie in the same regions; names of regions
    have no hyphen, so that names with one are new, and they say which regions, whatever the order and the labels.
    """
    regions = {name: set(values) for name, values in labels if name != IGNORE}
    inside: dict[tuple[str, ...], list[int]] = {}
    for value in sorted(set().union(*regions.values())):
        inside.setdefault(tuple(name for name, values in regions.items() if value in values), []).append(value)
    if all(len(names) == 1 for names in inside):
        return dict(labels), {}
    alone = {names: next((name for name in names if regions[name] == {*group}), "") for names, group in inside.items()}
    named = {names: alone[names] or f"{'-'.join(sorted(names))}-only" for names in inside}
    values = {named[names]: tuple(group) for names, group in inside.items()}
    values |= {name: group for name, group in labels if name == IGNORE}
    return values, {name: tuple(named[names] for names in inside if name in names) for name in regions}


def _name_class(text: str) -> str:
    """A class's name in a-z, 0-9 and _."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _label_problems(classes: Sequence[tuple[str, tuple[int, ...]]]) -> Iterator[str]:
    """Why the labels cannot be learnt."""
    names, values = [name for name, _ in classes], [value for _, several in classes for value in several]
    if set(names) <= {IGNORE}:
        example = '{"background": 0, "peripheral": 1, "transition": 2}'
        yield f"labels: none that can be read; name whole numbers, as in {example}"
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        yield "labels: names must differ in a-z and 0-9, and hold one of these; rename some"
    ignored = {value for name, several in classes if name == IGNORE for value in several}
    if shared := sorted(value for value in ignored if values.count(value) > 1):
        yield f"labels: {shared} are ignored, and a class has them too; name labels that exclude each other"
    elif names and len(set(names)) == len(names):
        made, regions = _split_regions(classes)
        yield from _region_problems([*made], regions)
    of_background = {value for name, several in classes if name == BACKGROUND for value in several}
    if wrong := sorted(of_background | {value for value in values if not 1 <= value <= LARGEST_VALUE}):
        yield f"labels: must be in [1, {LARGEST_VALUE}], and 0 the background, found {wrong}"


def _region_problems(classes: Sequence[str], regions: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Why classes, or regions of them, cannot be learnt."""
    learned = [name for name in classes if name != IGNORE]
    if len(learned) > MOST_MASK_CLASSES:
        yield f"labels: {len(learned)} classes, and {MOST_MASK_CLASSES} are learnt at most; join or drop some"
    if long := [name for name in learned if len(name) > LONGEST]:
        yield f"labels: {', '.join(long)}: the class of what lies in these regions alone; shorten the regions' names"
    for name, text in find_region_problems(regions, learned).items():
        yield f"labels: {name}: {text}" if name else f"labels: {text}"


def _list_stems(folder: Path, ending: str) -> list[str]:
    """Names of a folder's files with this ending, without it."""
    if not folder.is_dir():
        return []
    return sorted(path.name.removesuffix(ending) for path in folder.iterdir() if path.name.endswith(ending))


def _file_problems(images: Sequence[str], labelled: Sequence[str], ending: str) -> Iterator[str]:
    """Why the files cannot be used. images: their names without the ending. labelled: cases with a label map."""
    channels = [match[1] for stem in images if (match := CHANNEL.search(stem))]
    if further := sum(channel != "0000" for channel in channels):
        yield f"{further:,} files of {IMAGES} are of a second or later channel, and a study has one image here"
    if odd := len(images) - len(channels):
        yield f"{odd:,} files of {IMAGES} do not end with _0000{ending}, by which nnU-Net knows a channel; rename them"
    if not labelled:
        yield f"no image NAME_0000{ending} of {IMAGES} has its label map NAME{ending} in {LABELS}; add them"
