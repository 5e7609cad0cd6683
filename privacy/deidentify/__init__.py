"""De-identification of DICOM by PS3.15, and a second look at what is left."""
