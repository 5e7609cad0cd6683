"""An archive over a folder: another machine, whose own disk no fault of ours meets.

`series/` has a folder of files for each series, and `series.json` its entries; results lie in `taken/`, one folder for
each study. What is written on our side is written by what real archives use (`pipelines.pacs.inbox`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pydicom
from injected import OPEN, REAL

from pipelines.pacs.archive import Entry, Fetched, Odd, Query
from pipelines.pacs.inbox import Inbox
from pipelines.pacs.outbox import read_outgoing
from pipelines.pacs.settings import Limits

LIST = "series.json"


@dataclass(frozen=True)
class FolderArchive:
    """See `pipelines.pacs.archive.Archive`."""

    folder: Path

    def find(self, query: Query) -> Iterator[Entry | Odd]:
        for study, series, files in self._list():
            yield Entry(study, series, "MR", instances=len(files))

    def fetch(self, entry: Entry, folder: Path) -> Fetched:
        inbox = Inbox(entry, folder, Limits())
        (files,) = (files for _, series, files in self._list() if series == entry.series)
        try:
            for name in files:
                with OPEN(self.folder / "series" / name, "rb") as there, inbox.arriving() as here:
                    here.write(there.read())
        except BaseException:
            inbox.empty()
            raise
        return inbox.fetched()

    def store(self, files: Sequence[Path]) -> Sequence[Odd]:
        for path in files:
            sent = read_outgoing(path)
            if isinstance(sent, Odd):
                return [sent]
            study = str(pydicom.dcmread(path, stop_before_pixels=True).StudyInstanceUID)
            place = self.folder / "taken" / study / f"{sent.instance}.dcm"
            if not place.exists():
                if not place.parent.exists():
                    REAL["mkdir"](place.parent)
                with path.open("rb") as here, OPEN(place, "wb") as there:
                    there.write(here.read())
        return ()

    def _list(self) -> list[tuple[str, str, list[str]]]:
        with OPEN(self.folder / LIST) as file:
            said: list[tuple[str, str, list[str]]] = json.load(file)
        return said


def filled(folder: Path, files: Sequence[Path]) -> FolderArchive:
    """An archive that has these files."""
    found: dict[tuple[str, str], list[str]] = {}
    (folder / "series").mkdir(parents=True)
    (folder / "taken").mkdir()
    for path in files:
        header = pydicom.dcmread(path, stop_before_pixels=True)
        name = f"{header.SOPInstanceUID}.dcm"
        os.link(path, folder / "series" / name)
        found.setdefault((str(header.StudyInstanceUID), str(header.SeriesInstanceUID)), []).append(name)
    (folder / LIST).write_text(json.dumps([(*uids, names) for uids, names in found.items()]))
    return FolderArchive(folder)
