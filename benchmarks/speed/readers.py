"""Speed and memory of reading, ours against MONAI's and SimpleITK's readers: python -m benchmarks.speed.readers

Every reader finds the studies of one folder and reads them one after the other, in one thread and from a warm cache;
nothing is kept. Time is that of the processor, and the readers take turns, so that a busy machine slows all of them:
only ratios within a run count. Memory is the growth of a fresh process's peak while it reads (Linux only), after it has
read one small study.

Ours parses each DICOM header once, for the index, which checks it (positions, spacing, orientation, patient, unit,
damage), and then reads uncompressed pixels from where they lie. The others stack what they find. `--profile` prints
where the time of ours goes; in NIfTI half is placing the grid (qform, sform), twice.

Libraries for comparison are no dependencies: pip install SimpleITK itk, in a virtual environment of its own.
"""

from __future__ import annotations

import os

from benchmarks.shared.clock import measure_alone, read_memory
from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cProfile
import gc
import pstats
import shutil
import statistics
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reader = Callable[[Path], Iterator[NDArray[np.generic]]]

REPEATS = 7
PATIENTS = 40
COHORTS = (10, 40, 160)  # patients
DATA = Path(os.environ.get("CONSILIUM_DATA", Path(__file__).parents[3] / "shared" / "data"))
LIBRARIES = {"MONAI": "monai", "SimpleITK": "SimpleITK", "ITK": "itk"}


def ours_dicom(folder: Path) -> Iterator[NDArray[np.generic]]:
    from pipelines.data.dicom.reader import index_dicom
    from pipelines.data.index import load_candidate
    from pipelines.data.sources import DicomSource
    from pipelines.data.study import Study

    for candidate in index_dicom(DicomSource(folder=str(folder))).candidates:
        study = load_candidate(candidate)
        if isinstance(study, Study):
            yield study.image.values


def ours_nifti(folder: Path) -> Iterator[NDArray[np.generic]]:
    from pipelines.data.index import load_candidate
    from pipelines.data.nifti.reader import index_nifti
    from pipelines.data.sources import NiftiSource
    from pipelines.data.study import Study

    for candidate in index_nifti(NiftiSource(folder=str(folder))).candidates:
        study = load_candidate(candidate)
        if isinstance(study, Study):
            yield study.image.values


def monai_with(name: str) -> Reader:
    """A reader class of monai.data; a DICOM reader gets folders, one series in each."""

    def read(folder: Path) -> Iterator[NDArray[np.generic]]:
        from monai import data

        for place in sorted(folder.rglob("*.nii.gz")) or series_folders(folder):
            reader = getattr(data, name)()
            yield reader.get_data(reader.read(str(place)))[0]

    return read


def simpleitk(folder: Path) -> Iterator[NDArray[np.generic]]:
    itk: Any = import_module("SimpleITK")
    itk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    for path in sorted(folder.rglob("*.nii.gz")):
        yield itk.GetArrayFromImage(itk.ReadImage(str(path)))
    for place in [] if any(folder.rglob("*.nii.gz")) else series_folders(folder):
        for series in itk.ImageSeriesReader.GetGDCMSeriesIDs(str(place)):
            names = itk.ImageSeriesReader.GetGDCMSeriesFileNames(str(place), series)
            yield itk.GetArrayFromImage(itk.ReadImage(names))


def series_folders(folder: Path) -> list[Path]:
    """Folders that hold files."""
    return sorted({path.parent for path in folder.rglob("*") if path.is_file()})


READERS: Mapping[str, Mapping[str, tuple[str | None, Reader]]] = {
    "dicom": {
        "ours": (None, ours_dicom),
        "MONAI PydicomReader": ("MONAI", monai_with("PydicomReader")),
        "MONAI ITKReader": ("ITK", monai_with("ITKReader")),
        "SimpleITK": ("SimpleITK", simpleitk),
    },
    "nifti": {
        "ours": (None, ours_nifti),
        "MONAI NibabelReader": ("MONAI", monai_with("NibabelReader")),
        "MONAI ITKReader": ("ITK", monai_with("ITKReader")),
        "SimpleITK": ("SimpleITK", simpleitk),
    },
}


def installed(form: str) -> dict[str, Reader]:
    """The readers whose libraries are here."""
    return {n: read for n, (library, read) in READERS[form].items() if not library or find_spec(LIBRARIES[library])}


def spent(read: Reader, folder: Path) -> float:
    """Seconds of the processor."""
    gc.collect()
    begun = time.process_time()
    for _ in read(folder):
        pass
    return time.process_time() - begun


def growth(form: str, name: str, small: Path, folder: Path) -> float:
    warnings.simplefilter("ignore")
    read = READERS[form][name][1]
    spent(read, small)
    before = read_memory()
    spent(read, folder)
    return read_memory() - before


def traced(form: str, small: Path, folder: Path) -> float:
    """Peak, MiB, of what Python and NumPy hold while our reader reads a folder."""
    read = READERS[form]["ours"][1]
    spent(read, small)
    tracemalloc.start()
    spent(read, folder)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 2**20


def compare(title: str, form: str, small: Path, folder: Path) -> None:
    """Print a line a reader: milliseconds (median, range), ratio to ours (median of the turns), memory."""
    readers = installed(form)
    volumes = {name: [volume.size for volume in read(folder)] for name, read in readers.items()}
    turns = [{name: spent(read, folder) for name, read in readers.items()} for _ in range(REPEATS)]
    for name in readers:
        if sorted(volumes[name]) != sorted(volumes["ours"]):
            print(f"{name} does not find the same volumes in {title}: its line compares different work")
        times = [1e3 * turn[name] for turn in turns]
        ratio = statistics.median(turn[name] / turn["ours"] for turn in turns)
        print(
            f"| {title} | {name} | {statistics.median(times):.0f} ({min(times):.0f}-{max(times):.0f}) | {ratio:.2f} | "
            f"{measure_alone(growth, form, name, small, folder):.1f} |"
        )


PARTS = {
    "pydicom's parsing": ("filereader.py", "dcmread"),
    "values of the index": ("frames.py", "_values"),
    "checks, sorting, geometry": ("reader.py", "_candidates"),
    "pixels: reading, decoding, real values": ("reader.py", "_load"),
    "list of files": ("folder.py", "walked"),
}


def shares(title: str, folder: Path) -> None:
    """Print the share of each part of our reading, by cProfile, which makes many small calls look longer."""
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    for _ in ours_dicom(folder):
        pass
    profile.disable()
    found: Any = pstats.Stats(profile)
    spent_in: dict[tuple[str, str], float] = {}
    for (file, _, name), (*_, whole, _) in found.stats.items():
        spent_in[Path(file).name, name] = spent_in.get((Path(file).name, name), 0) + whole
    told = {part: spent_in.get(place, 0) / found.total_tt for part, place in PARTS.items()}
    print(f"{title}: " + ", ".join(f"{part} {share:.0%}" for part, share in told.items()))


def phantom(folder: Path, form: str, patients: int) -> Path:
    """The image folder of a phantom hospital."""
    from pipelines.phantom.files import write
    from pipelines.phantom.patients import PhantomSource

    place = folder / f"{form}-{patients}"
    write(PhantomSource(scanner="P", patients=patients, seed=7, format="dicom" if form == "dicom" else "nifti"), place)
    return place / "images"


def prostatex(folder: Path) -> Path | None:
    """ADC maps and T2 images of ProstateX; not the diffusion series, which readers without b-values cannot part."""
    from pydicom import dcmread

    for series in series_folders(DATA / "prostatex" / "dicom"):
        first = dcmread(next(series.iterdir()), stop_before_pixels=True, specific_tags=["ImageType"])
        if "TRACEW" not in first.ImageType:
            shutil.copytree(series, folder / "prostatex" / series.parent.name / series.name)
    return folder / "prostatex" if (folder / "prostatex").is_dir() else None


def profiled(place: Path) -> None:
    real = prostatex(place)
    for title, folder in (("ProstateX", real), (f"phantom, {PATIENTS} studies", phantom(place, "dicom", PATIENTS))):
        if folder is not None:
            list(ours_dicom(folder))  # what is imported and cached at first is no part of reading
            shares(title, folder)


def compared(place: Path) -> None:
    for library, module in LIBRARIES.items():
        if not find_spec(module):
            print(f"{library} is not installed, so its readers are left out: pip install {module}")
    small = {form: phantom(place, form, 1) for form in READERS}
    print("| files | reader | ms, median (range) | time, ours = 1 | peak memory, + MiB |\n|---|---|---|---|---|")
    real = prostatex(place)
    if real is not None:
        compare("ProstateX, 4 series of 19", "dicom", small["dicom"], real)
    for form in READERS:
        compare(f"phantom, {PATIENTS} studies", form, small[form], phantom(place / "speed", form, PATIENTS))
    print("\n| studies read by ours | DICOM: peak, MiB (of Python) | NIfTI: the same |\n|---|---|---|")
    for patients in COHORTS:
        cells = []
        for form in READERS:
            folder = phantom(place / "flat", form, patients)
            whole = measure_alone(growth, form, "ours", small[form], folder)
            cells.append(f"+ {whole:.1f} ({measure_alone(traced, form, small[form], folder):.2f})")
        print(f"| {patients} | {' | '.join(cells)} |")


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--profile", action="store_true", help="where our DICOM reader spends its time, and nothing else")
    asked = line.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        (profiled if asked.profile else compared)(Path(name))


if __name__ == "__main__":
    main()
