"""A run's stages in order, their artifacts on disk, the lock, progress, and exit codes."""
