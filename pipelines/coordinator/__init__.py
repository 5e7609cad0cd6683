"""The coordinator: it plans a run, asks hospitals, and reports. It never reads patient data."""
