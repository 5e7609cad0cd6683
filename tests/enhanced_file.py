"""Enhanced multi-frame files for tests, made of classic ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from pydicom.dataset import Dataset, FileDataset
from pydicom.uid import EnhancedMRImageStorage

MOVED = {  # keyword of classic files -> functional group macro, and its name there
    "ImagePositionPatient": ("PlanePositionSequence", "ImagePositionPatient"),
    "ImageOrientationPatient": ("PlaneOrientationSequence", "ImageOrientationPatient"),
    "PixelSpacing": ("PixelMeasuresSequence", "PixelSpacing"),
    "SliceThickness": ("PixelMeasuresSequence", "SliceThickness"),
    "SpacingBetweenSlices": ("PixelMeasuresSequence", "SpacingBetweenSlices"),
    "RescaleSlope": ("PixelValueTransformationSequence", "RescaleSlope"),
    "RescaleIntercept": ("PixelValueTransformationSequence", "RescaleIntercept"),
    "RescaleType": ("PixelValueTransformationSequence", "RescaleType"),
    "EchoTime": ("MREchoSequence", "EffectiveEchoTime"),
    "ImageType": ("MRImageFrameTypeSequence", "FrameType"),
    "DiffusionBValue": ("MRDiffusionSequence", "DiffusionBValue"),
}


def put(group: Dataset, macro: str, keyword: str, value: Any) -> None:
    if macro not in group:
        setattr(group, macro, [Dataset()])
    setattr(group[macro].value[0], keyword, float(value) if keyword == "EffectiveEchoTime" else value)


def enhanced(classic: Sequence[FileDataset], *, shared: Sequence[str] = ()) -> FileDataset:
    """One enhanced file of many classic ones. shared: keywords that go into the shared functional groups."""
    result = copy.deepcopy(classic[0])
    result.SOPClassUID = result.file_meta.MediaStorageSOPClassUID = EnhancedMRImageStorage
    result.NumberOfFrames = len(classic)
    common, own = Dataset(), [Dataset() for _ in classic]
    for keyword, (macro, name) in MOVED.items():
        for dataset, group in zip(classic, own, strict=True):
            if keyword in dataset:
                put(common if keyword in shared else group, macro, name, dataset[keyword].value)
        if keyword in result:
            del result[keyword]
    for dataset, group in zip(classic, own, strict=True):
        if "RealWorldValueMappingSequence" in dataset:
            group.RealWorldValueMappingSequence = dataset.RealWorldValueMappingSequence
    if "RealWorldValueMappingSequence" in result:
        del result["RealWorldValueMappingSequence"]
    result.SharedFunctionalGroupsSequence = [common]
    result.PerFrameFunctionalGroupsSequence = own
    result.PixelData = b"".join(dataset.PixelData for dataset in classic)
    return result
