"""Images and masks out: DICOM, NIfTI and PNG files on the grid of the study that they belong to."""
