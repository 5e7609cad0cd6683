"""Segmentations as files: DICOM SEG, NIfTI and PNG, and a model's masks on the grid of the study they are of."""
