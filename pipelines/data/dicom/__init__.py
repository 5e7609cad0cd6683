"""Read DICOM: series, pixels, diffusion weighting and segmentations."""
