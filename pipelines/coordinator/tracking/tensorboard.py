"""Figures as files of TensorBoard, each written whole, so that writing them twice changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from pipelines.coordinator.tracking.figures import Figures
from pipelines.runs.store import DiskFolder

FILE = "events.out.tfevents.0.consilium"
"""TensorBoard reads every file with `tfevents` in its name; this one has no machine's name and no process's number."""
VERSION = "brain.Event:2"  # the first record of every such file


def write_tensorboard(figures: Figures, folder: Path) -> bool:
    """Write the figures into a run's folder, and remove files of earlier ones; False if exactly these are there.

    Raises:
        ModuleNotFoundError: `pip install consilium[tensorboard]`.
        OSError: the disk.
    """
    files = {folder / place / FILE: data for place, data in build_event_files(figures).items()}
    existing_files = {path: path.read_bytes() for path in folder.rglob(FILE)}
    for path in existing_files.keys() - files.keys():
        path.unlink()
    for path, data in files.items():
        if existing_files.get(path) != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            DiskFolder(path.parent).write(FILE, data)
    return files != existing_files


def build_event_files(figures: Figures) -> dict[str, bytes]:
    """Place below the run's folder -> the bytes of its file, which follow from the figures alone, times included.

    A place is `METHOD/SITE`, so that TensorBoard draws the same figure of all methods and sites into one card. Settings
    and texts lie in the run's folder itself.
    """
    from tensorboard.compat.proto.event_pb2 import Event  # an optional package
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb

    made: dict[str, list[Any]] = {}

    def add_event(place: str, step: int, summary: Any) -> None:
        first_event = [Event(wall_time=figures.made, file_version=VERSION)]
        made.setdefault(place, first_event).append(Event(wall_time=figures.made, step=step, summary=summary))

    for point in figures.points:
        place, tag = split_name(point.name)
        add_event(place, point.step, scalar_pb(tag, point.value))
    table = "\n".join(f"| {name} | `{text}` |" for name, text in sorted(figures.settings.items()))
    add_event("", 0, text_pb("settings", f"| | |\n|---|---|\n{table}"))
    for name, path in figures.files.items():
        if name.endswith(".md"):
            add_event("", 0, text_pb(name, path.read_text()))
    return {place: _encode_events(file_events) for place, file_events in made.items()}


def split_name(name: str) -> tuple[str, str]:
    """Place and tag of a number: `AUC/fedavg/north.low` is `AUC.low` in `fedavg/north`, `epsilon/north` stays."""
    what, _, where = name.partition("/")
    if "/" not in where:
        return "", name
    place, dot, end = where.partition(".")
    return place, f"{what}{dot}{end}"


def _encode_events(made: Sequence[Any]) -> bytes:
    """The bytes of an event file."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    memory_file = _RecordFile()
    writer = RecordWriter(memory_file)
    for event in made:
        writer.write(event.SerializeToString())
    return memory_file.getvalue()


class _RecordFile(BytesIO):
    """What TensorBoard's writer of records takes for a file."""


def read_scalars(data: bytes) -> list[tuple[str, int, float]]:
    """Name, step and value of every number in such a file, in single precision."""
    from tensorboard.compat.proto.event_pb2 import Event

    numbers, at = list[tuple[str, int, float]](), 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += 12 + size + 4
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                numbers.append((value.tag, int(event.step), float(value.tensor.float_val[0])))
    return numbers
