"""Simulate hospitals: organs, scanners, and the files that a real hospital would have."""
