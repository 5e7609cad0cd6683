"""Encode images and masks as bytes of DICOM, NIfTI and PNG files on the grid of their study, without writing files."""
