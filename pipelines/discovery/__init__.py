"""Detect the contents of a folder of studies, and draft settings for it. No output may contain a patient's name."""
