"""Voxel grids: positions of voxels in the patient, and resampling from one grid to another."""
