"""DICOM in: series, pixels, diffusion weighting and segmentations."""
