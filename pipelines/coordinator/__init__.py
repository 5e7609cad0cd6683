"""The coordinator: it plans a run, asks hospitals, and reports. It never touches a patient."""
