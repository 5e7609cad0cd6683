"""Seconds and memory of ingest for many small files, of threads and processes, and of folders that ask for comparisons:

    python -m benchmarks.speed.ingest [--files 10000] [--json FILE]

Each row is `read_cohort` in a fresh process: CPU seconds, seconds with one reader and with two, and by how much the
process's peak of memory grew (Linux only). The files are copies of a few phantom patients under other names and UIDs.
The second table reads headers of DICOM only. A disk that answers late is played by a pause before each file. CPU is
that of this process and, of processes, half of what both needed (with their start) and all that it took to get their
headers from them: the seconds of a machine with two idle cores. The rows of the third table are folders in which every
file would have to be compared with every other one: a ratio above 4 shows something that grows faster than the files.
"""

from __future__ import annotations

import os

from benchmarks.shared.clock import measure_alone, spend_seconds
from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from pipelines.data.dicom.frames import read_frames
from pipelines.data.dicom.series import IDENTITY, PLACE, SHAPE
from pipelines.data.headers import Frame
from pipelines.data.intake import AT_ONCE, run_in_order
from pipelines.data.pseudonym import ALLOWED_HEADERS
from pipelines.data.quantity import HEADERS

LATE_S = 0.002  # as a disk behind a network answers
PATIENTS = 20  # phantom patients that are copied
READERS = (1, 2)
KEY = b"k" * 32
SHARES = {"train": 0.5, "validation": 0.15, "test": 0.35}


def write_dicom(folder: Path, files: int) -> int:
    """Series of phantom patients, each with a patient and UIDs of its own; returns their number."""
    from pydicom import dcmread

    from pipelines.phantom.files import write
    from pipelines.phantom.patients import PhantomSource

    source = folder / "source"
    write(PhantomSource(scanner="P", patients=PATIENTS, seed=7), source)
    series = [sorted(place.iterdir()) for place in sorted((source / "images").iterdir())]
    known = [dcmread(paths[0], stop_before_pixels=True) for paths in series]
    made = number = 0
    while made < files:
        head, paths = known[number % PATIENTS], series[number % PATIENTS]
        home = folder / "images" / f"{number:06d}"
        home.mkdir(parents=True)
        for path in paths:
            data, image = path.read_bytes(), dcmread(path, stop_before_pixels=True).SOPInstanceUID
            for uid in (head.StudyInstanceUID, head.SeriesInstanceUID, image):
                data = data.replace(uid.encode(), f"{uid[:-8]}{number:08d}".encode())
            data = data.replace(head.PatientID.encode(), f"{number:0{len(head.PatientID)}d}".encode())
            (home / path.name).write_bytes(data)
        made, number = made + len(paths), number + 1
    names = [f"{place:0{len(known[0].PatientID)}d}" for place in range(number)]
    (folder / "labels.csv").write_text("patient,label\n" + "".join(f"{name},0\n" for name in names))
    return made


def write_nifti(folder: Path, files: int) -> int:
    """Copies of one phantom patient's map, each of a patient of its own."""
    from pipelines.phantom.files import write
    from pipelines.phantom.patients import PhantomSource

    write(PhantomSource(scanner="P", patients=1, seed=7, format="nifti"), folder / "source")
    data = next((folder / "source" / "images").iterdir()).read_bytes()
    (folder / "images").mkdir()
    for number in range(files):
        (folder / "images" / f"{number:06d}.nii.gz").write_bytes(data)
    (folder / "labels.csv").write_text("patient,label\n" + "".join(f"{number:06d},0\n" for number in range(files)))
    return files


def write_pictures(folder: Path, files: int) -> int:
    import numpy as np
    from PIL import Image

    (folder / "images").mkdir()
    grain = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(grain).save(folder / "one.jpg")
    for number in range(files):
        (folder / "images" / f"{number:06d}.jpg").write_bytes((folder / "one.jpg").read_bytes())
    lines = (f"{number:06d},{number:06d},0\n" for number in range(files))
    (folder / "labels.csv").write_text("image,patient,label\n" + "".join(lines))
    return files


WRITERS: dict[str, Callable[[Path, int], int]] = {
    "DICOM": write_dicom,
    "NIfTI": write_nifti,
    "pictures": write_pictures,
}


def ingested(form: str, folder: Path, readers: int) -> tuple[float, float, float]:
    """Seconds, CPU seconds and growth of the peak, MiB, of one ingest in this process."""
    from pipelines.data.cohort import read_cohort
    from pipelines.data.images import AnyImages, Pictures, Slices
    from pipelines.data.sources import DicomSource, Files, Labels, NiftiSource, PictureSource, TableLabels

    warnings.simplefilter("ignore")
    images, table = str(folder / "images"), str(folder / "labels.csv")
    labels: Labels | None = TableLabels(file=table, patient="patient", label="label")
    seen: AnyImages = Slices(centre="image")
    source: Files = DicomSource(folder=images) if form == "DICOM" else NiftiSource(folder=images)
    if form == "pictures":
        source, labels, seen = PictureSource(folder=images, table=table, pattern="{image}.jpg"), None, Pictures(size=32)
    before, wall, cpu = peak(), time.perf_counter(), time.process_time()
    read = read_cohort(source, labels, seen, fractions=SHARES, seed=0, key=KEY, readers=readers, scratch=folder)
    spent = time.perf_counter() - wall, time.process_time() - cpu, peak() - before
    if read.rejected or not read.facts["studies"]:
        raise SystemExit(f"{form}: nothing may be refused here, found {read.facts}")
    return spent


def header_pass(files: Sequence[Path], at_once: int, pause_s: float) -> tuple[float, float]:
    """Seconds and CPU seconds of reading headers with this many threads."""
    warnings.simplefilter("ignore")
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in run_in_order(files, partial(headers_after, pause_s, {}), readers=at_once):
        pass
    return time.perf_counter() - wall, time.process_time() - cpu


def headers_after(pause_s: float, seen: dict[tuple[object, ...], object], path: Path) -> list[Frame]:
    if pause_s:
        time.sleep(pause_s)
    return read_frames(path, (*IDENTITY, *PLACE, *SHAPE, *HEADERS, *ALLOWED_HEADERS), diffusion=False, seen=seen)


def headers_of(files: Sequence[Path]) -> list[list[Frame]]:
    warnings.simplefilter("ignore")
    seen: dict[tuple[object, ...], object] = {}
    return [headers_after(0, seen, path) for path in files]


def in_processes(files: Sequence[Path], count: int) -> tuple[float, float]:
    """As `header_pass`, with processes, which get a few hundred files at a time."""
    before, wall, cpu = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), time.process_time()
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = [files[first : first + 500] for first in range(0, len(files), 500)]
        found = sum(len(part) for part in pool.map(headers_of, parts))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    others = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if found != len(files):
        raise SystemExit(f"{found} of {len(files)} files came back from processes")
    return time.perf_counter() - wall, time.process_time() - cpu + others / count


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def nothing_selected(files: int) -> tuple[float]:
    """Each file of a patient of whom nothing was selected."""
    from pipelines.data.accounts import Account, reject_unserved_patients

    found = [Account(f"{n}.dcm", "not_selected", f"P{n}", "", "T2", "series_not_selected", "") for n in range(files)]
    return _spent(lambda: reject_unserved_patients(found))


def one_patient(files: int) -> tuple[float]:
    """Each file a study of one patient and session, at a place of its own."""
    import numpy as np

    from pipelines.data.index import Candidate, reject_ambiguous

    def candidate(number: int) -> Candidate:
        affine = np.eye(4)
        affine[2, 3] = number
        return Candidate("P", f"{number}.nii", "", affine, (8, 8, 8), lambda: None)  # type: ignore[arg-type, return-value]

    found = [candidate(number) for number in range(files)]
    return _spent(lambda: reject_ambiguous(found))


def dated_names(files: int) -> tuple[float]:
    """Each patient in a mapping of names that adds a date."""
    from pipelines.data.labels import find_mask, open_masks
    from pipelines.data.sources import MaskLabels
    from pipelines.data.study import Unusable

    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "names.json")
        names.write_text(json.dumps({f"P{number}_2020": f"m{number}" for number in range(files)}))
        masks = open_masks(MaskLabels(folder=folder, names=str(names)), "labels")

        def asked() -> None:
            for number in range(files):
                try:
                    find_mask(masks, f"P{number}", missing="no_label")
                except Unusable:
                    continue

        return _spent(asked)


def damaged_files(files: int) -> tuple[float]:
    """Half of the files damaged, the other half a series each, in one folder for both."""
    from pydicom import dcmread

    from pipelines.data.dicom.reader import index_dicom
    from pipelines.data.sources import DicomSource

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dicom(folder, 1)
        data = next((folder / "images" / "000000").iterdir()).read_bytes()
        uid = dcmread(next((folder / "images" / "000000").iterdir()), stop_before_pixels=True).SeriesInstanceUID
        for number in range(files // 2):
            home = folder / "many" / f"{number:06d}"
            home.mkdir(parents=True)
            own = data.replace(uid.encode(), f"{uid[:-8]}{number:08d}".encode())
            (home / "a.dcm").write_bytes(own)
            (home / "b.dcm").write_bytes(own[:200])
        return _spent(lambda: index_dicom(DicomSource(folder=str(folder / "many"))))


def _spent(do: Callable[[], object]) -> tuple[float]:
    warnings.simplefilter("ignore")
    return (spend_seconds(do),)


HARD = {
    "nothing selected of any patient": nothing_selected,
    "all studies of one patient and session": one_patient,
    "names of masks with dates": dated_names,
    "a damaged file beside each series": damaged_files,
}


def headers(files: Sequence[Path]) -> list[list[str]]:
    ways: dict[str, Callable[[], tuple[float, ...]]] = {
        "one at a time": partial(header_pass, files, 1, 0.0),
        "two threads": partial(header_pass, files, 2, 0.0),
        "two processes": partial(in_processes, files, 2),
        f"one at a time, {1e3 * LATE_S:g} ms late": partial(header_pass, files, 1, LATE_S),
        f"{AT_ONCE} threads, {1e3 * LATE_S:g} ms late": partial(header_pass, files, AT_ONCE, LATE_S),
    }
    rows = []
    print(f"\n| headers of {len(files):,} DICOM files | s | CPU s |\n|---|---|---|")
    for what, measure in ways.items():
        rows.append([what, *(f"{spent:.1f}" for spent in measure_alone(measure))])
        print(f"| {' | '.join(rows[-1])} |", flush=True)
    return rows


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--files", type=int, default=10_000)
    line.add_argument("--json", type=Path)
    options = line.parse_args()
    rows: list[list[str]] = []
    print("| files | CPU s, one reader | s, one reader | s, two readers | memory, + MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for form, write in WRITERS.items():
            folder = Path(name, form)
            folder.mkdir()
            made = write(folder, options.files)
            one, two = (measure_alone(partial(ingested, form, folder, readers)) for readers in READERS)
            rows.append([f"{made:,} {form}", f"{one[1]:.1f}", f"{one[0]:.1f}", f"{two[0]:.1f}", f"{one[2]:.0f}"])
            print(f"| {' | '.join(rows[-1])} |", flush=True)
        passes = headers(sorted((Path(name) / "DICOM" / "images").rglob("*.dcm")))
    hard: list[list[str]] = []
    print("\n| comparisons | CPU s, a quarter of the files | all files | ratio |\n|---|---|---|---|")
    for what, measure in HARD.items():
        few, many = (measure_alone(partial(measure, count))[0] for count in (options.files // 4, options.files))
        hard.append([what, f"{few:.2f}", f"{many:.2f}", f"{many / few:.1f}"])
        print(f"| {' | '.join(hard[-1])} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"ingest": rows, "headers": passes, "comparisons": hard}, indent=1) + "\n")


if __name__ == "__main__":
    main()
