"""Images and masks as the bytes of DICOM, NIfTI and PNG files on the grid of their study; nothing is written here."""
