"""One hospital: what it answers, from its own disk, under its own policy. `worker.py` takes every request."""
