"""Real DICOM files for tests: all of them, or a subset with one of each kind."""

from __future__ import annotations

from pathlib import Path

import pydicom.data

PYDICOM = "pydicom"
MANY = 13  # a folder with more files holds series, whose files differ in little but their pixels


def files_below(data: Path, name: str, thorough: bool) -> list[Path]:
    """The files of a folder of real data, or pydicom's own test files (which need no download).

    Not thorough: the first, the middle and the last file of folders of series; one in five of pydicom's, each of which
    tests something else.
    """
    if name == PYDICOM:
        own = Path(pydicom.data.__file__).parent / "test_files"
        return _files(own)[:: 1 if thorough else 5]
    found: list[Path] = []
    for folder in [data / name, *sorted(path for path in (data / name).rglob("*") if path.is_dir())]:
        files = [path for path in _files(folder) if path.parent == folder]
        some = len(files) > MANY and not thorough
        found += [files[0], files[len(files) // 2], files[-1]] if some else files
    return sorted(found)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
