"""Read one hospital's files into a cohort, and write results to files: readers, geometry, labels, splits."""
