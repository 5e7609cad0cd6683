"""Hospitals that are not on this machine: both sides of a run over NVIDIA FLARE."""
