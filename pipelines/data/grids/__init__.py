"""Voxel grids: where voxels lie in the patient, and how values are read from one grid at the voxels of another."""
