"""Read NIfTI: volumes, BIDS names and sidecars."""
