"""Studies of one hospital become a cohort: readers, geometry, units, labels, splits, and the phantom."""
