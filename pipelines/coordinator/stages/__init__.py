"""The stages of a run, one file each: they send requests to sites and write artifacts, and compute no science."""
