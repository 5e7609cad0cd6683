"""One hospital: what it answers, from its own disk, under its own policy. `worker.py` is the way in."""
