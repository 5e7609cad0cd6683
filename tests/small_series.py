"""A small DICOM series, which tests modify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage

SLICES, ROWS, COLUMNS = 5, 6, 4
Change = Callable[[int, Dataset], None]


@dataclass
class Series:
    """A small axial series; stored value = 100 * slice + 10 * row + column."""

    patient: str = "Miller 7"
    study: str = "1.2.3"
    series: str = "1.2.3.4"
    change: Change = lambda index, dataset: None
    slices: int = SLICES
    extra: dict[str, Any] = field(default_factory=dict)

    def stored(self, index: int) -> np.ndarray:
        return (100 * index + 10 * np.arange(ROWS)[:, None] + np.arange(COLUMNS)).astype("<u2")

    def dataset(self, index: int) -> FileDataset:
        meta = FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = MRImageStorage
        dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        dataset.SOPClassUID, dataset.SOPInstanceUID = MRImageStorage, f"{self.series}.{index + 1}"
        meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
        dataset.PatientID, dataset.StudyInstanceUID, dataset.SeriesInstanceUID = self.patient, self.study, self.series
        dataset.PatientName, dataset.PatientBirthDate, dataset.StationName = "Miller^Ann", "19500101", "MR1"
        dataset.Modality, dataset.Manufacturer, dataset.ManufacturerModelName = "MR", "Maker", "Model 3"
        dataset.ImageType = ["DERIVED", "PRIMARY", "ADC"]
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.ImagePositionPatient = [-10, -20, 3 * index]
        dataset.PixelSpacing, dataset.SliceThickness = [2, 1.5], 3
        dataset.Rows, dataset.Columns, dataset.SamplesPerPixel = ROWS, COLUMNS, 1
        dataset.PhotometricInterpretation = "MONOCHROME2"
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
        dataset.PixelData = self.stored(index).tobytes()
        for keyword, value in self.extra.items():
            setattr(dataset, keyword, value)
        self.change(index, dataset)
        return dataset

    def write(self, folder: Path, names: list[str] | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(self.slices):
            name = names[index] if names else f"{index:03d}.dcm"
            self.dataset(index).save_as(folder / name, enforce_file_format=True)
        return folder


def everywhere(**values: Any) -> Change:
    def change(position: int, dataset: Dataset) -> None:
        for keyword, value in values.items():
            setattr(dataset, keyword, value)

    return change
