"""Damaged files, by the thousand: each ends as a study, a rejection or an ignored file, soon and in little memory."""

from __future__ import annotations

import gzip
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless, JPEGLSLossless, RLELossless

from pipelines.data.accounts import count_outcomes, list_accounts
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.index import Index, load_all
from pipelines.data.nifti.reader import index_nifti
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource

SECONDS = 10  # for one input
MEGABYTES = 600  # that the whole run may grow by
BUNDLED = Path(pydicom.__file__).parent / "data" / "test_files" / "dicomdirtests" / "98892001" / "CT5N"
NIBABEL = Path(nibabel.__file__).parent / "tests" / "data"
Base = dict[str, bytes]
Generator = np.random.Generator


class TookTooLongError(BaseException):
    """Not an Exception, so that no reader can swallow it."""


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TookTooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def contents(folder: Path, pattern: str = "*") -> Base:
    return {f"{index}.dcm": path.read_bytes() for index, path in enumerate(sorted(folder.rglob(pattern)))}


def dicom_bases(folder: Path, data: Path | None) -> list[Base]:
    """Small whole series: simulated and real, plain and compressed, classic and enhanced."""
    write(PhantomSource(scanner="A", patients=1, slices=4), folder / "phantom")
    plain = contents(folder / "phantom" / "images", "*.dcm")
    bases = [plain, {name.removesuffix(".dcm"): raw for name, raw in contents(BUNDLED).items()}]
    for syntax in (RLELossless, JPEGLSLossless, JPEG2000Lossless, DeflatedExplicitVRLittleEndian):
        bases.append({})
        for name in plain:
            dataset = pydicom.dcmread(pydicom.filebase.DicomBytesIO(plain[name]))
            if syntax == DeflatedExplicitVRLittleEndian:
                dataset.file_meta.TransferSyntaxUID = syntax
            else:
                dataset.compress(syntax)
            dataset.save_as(folder / "one.dcm", enforce_file_format=True)
            bases[-1][name] = (folder / "one.dcm").read_bytes()
    if data is not None:
        zoo = data / "dicom_zoo"
        bases += [{"0.dcm": (zoo / "siemens_enhanced_xa10" / f"6_{n}.dcm").read_bytes()} for n in (1, 2)]
        bases.append(jpeg_lossless(zoo / "transfer_syntaxes" / "5.dcm", folder))
        adc = next((data / "prostatex" / "dicom").rglob("*ADC*"))
        bases.append(dict(list(contents(adc).items())[:4]))
    return bases


def jpeg_lossless(path: Path, folder: Path) -> Base:
    """A stack of one real image, with a compression for which there is no encoder here."""
    base = {}
    for index in range(3):
        dataset = pydicom.dcmread(path)
        dataset.ImageType = ["ORIGINAL", "PRIMARY"]
        dataset.SOPInstanceUID = f"1.2.3.{index}"
        dataset.ImagePositionPatient = [0, 0, 3 * index]
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.save_as(folder / "one.dcm", enforce_file_format=True)
        base[f"{index}.dcm"] = (folder / "one.dcm").read_bytes()
    return base


def nifti_bases(folder: Path, data: Path | None) -> list[Base]:
    small = nibabel.Nifti1Image(np.arange(6 * 5 * 4, dtype=np.int16).reshape(6, 5, 4), np.diag([2.0, 2, 3, 1]))
    bases = [{"a.nii": small.to_bytes()}, {"a.nii.gz": gzip.compress(small.to_bytes(), mtime=0)}]
    bases += [{name: (NIBABEL / name).read_bytes()} for name in ("anatomical.nii", "example_nifti2.nii.gz")]
    return bases


def cut(generator: Generator, data: bytearray, other: bytes) -> None:
    del data[int(generator.integers(len(data))) :]


def flip(generator: Generator, data: bytearray, other: bytes) -> None:
    for _ in range(int(generator.integers(1, 20))):
        data[place(generator, len(data))] = int(generator.integers(256))


def zero(generator: Generator, data: bytearray, other: bytes) -> None:
    start = place(generator, len(data))
    stop = min(len(data), start + int(generator.integers(1, 400)))
    data[start:stop] = bytes([int(generator.choice([0, 255]))]) * (stop - start)


def splice(generator: Generator, data: bytearray, other: bytes) -> None:
    start, size = place(generator, len(other)), int(generator.integers(1, 2000))
    at = place(generator, len(data))
    data[at : at + int(generator.choice([0, size]))] = other[start : start + size]


def drop(generator: Generator, data: bytearray, other: bytes) -> None:
    at = place(generator, len(data))
    del data[at : at + int(generator.integers(1, 300))]


def place(generator: Generator, size: int) -> int:
    """Half of the damage is done to the first bytes, where headers are."""
    return int(generator.integers(min(size, 3000) if generator.random() < 0.5 else size))


DAMAGES = (cut, flip, flip, zero, splice, drop)


def damaged(generator: Generator, base: Base) -> Base:
    """One file of a folder, or sometimes all in the same way, is damaged."""
    names = sorted(base)
    victims = names if generator.random() < 0.2 else [names[int(generator.integers(len(names)))]]
    seed, kinds = int(generator.integers(2**32)), generator.choice(len(DAMAGES), int(generator.integers(1, 4)))
    result = dict(base)
    for name in victims:
        again, packed = np.random.default_rng(seed), name.endswith(".gz") and seed % 2
        data = bytearray(gzip.decompress(base[name]) if packed else base[name])
        for kind in kinds:
            if data:
                DAMAGES[kind](again, data, base[names[-1]])
        result[name] = gzip.compress(bytes(data), 1, mtime=0) if packed else bytes(data)
    return result


def outcome(folder: Path, files: Base, index: Callable[[], Index]) -> Counter[str]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    try:
        found = index()
    except ValueError as error:  # the settings' error: nothing there looks like an image
        assert "no DICOM file below" in str(error)  # noqa: PT017
        return Counter(["ignored"])
    studies, rejected = load_all(found)
    assert sum(count_outcomes(list_accounts(found.items, rejected)).values()) == len(files)
    for study in studies:
        assert study.image.values.dtype == np.float32
        assert np.isfinite(study.image.affine).all()
        assert abs(np.linalg.det(study.image.affine[:3, :3])) > 0
    assert all(one.reason.isidentifier() and len(one.detail) > 20 for one in rejected)
    return Counter(["read"] * len(studies) + [one.reason for one in rejected])


def fuzz(tmp_path: Path, data: Path | None, count: int, seed: int) -> Counter[str]:
    folder, total, slowest = tmp_path / "case", Counter[str](), 0.0
    dicom = DicomSource(folder=str(folder))
    fitted = DicomSource(folder=str(folder), derive="adc")
    nifti = NiftiSource(folder=str(folder), pattern="*")
    bases = dicom_bases(tmp_path, data), nifti_bases(tmp_path, data)
    outcome(folder, bases[0][0], lambda: index_dicom(dicom))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        kind = int(number % 4 == 3)
        base = bases[kind][int(generator.integers(len(bases[kind])))]
        source = fitted if number % 20 == 0 else dicom
        started = time.perf_counter()
        with alarm(SECONDS):
            index = (lambda: index_nifti(nifti)) if kind else (lambda source=source: index_dicom(source))
            total += outcome(folder, damaged(generator, base), index)
        slowest = max(slowest, time.perf_counter() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{count} inputs: {dict(total.most_common())}, slowest {slowest:.2f} s, {grown:.0f} MB more")  # noqa: T201
    assert grown < MEGABYTES
    assert total["read"] > 0
    return total


def test_a_hundred_damaged_folders_end_well(tmp_path: Path) -> None:
    fuzz(tmp_path, None, 100, seed=1)


@pytest.mark.slow
def test_two_thousand_damaged_folders_end_well(tmp_path: Path, data: Path) -> None:
    fuzz(tmp_path, data, 2000, seed=2)
