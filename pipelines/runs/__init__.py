"""What a run is: its stages in order, their artifacts on disk, the lock, progress, and why a run ended."""
