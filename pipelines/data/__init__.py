"""Files of one hospital become a cohort, and results become files again: readers, geometry, labels, splits."""
