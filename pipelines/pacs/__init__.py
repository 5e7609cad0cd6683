"""A hospital's picture archive (PACS): asked, read from, and given results, over DICOMweb or DICOM's own protocol."""
