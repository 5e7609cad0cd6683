"""One hospital: it answers requests from its own disk, under its own policy. Every request enters by `worker.py`."""
