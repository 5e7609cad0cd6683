"""A trained translator applied to a hospital's studies: its file, the native grid, and valid DICOM or NIfTI."""
