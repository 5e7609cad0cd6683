"""Voxel grids: where voxels lie in the patient, and the way from one grid to another and back."""
