"""Both sides of a run with remote hospitals over NVIDIA FLARE."""
