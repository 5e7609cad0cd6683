"""NIfTI in: volumes, and what BIDS names and sidecars say."""
