"""Checks between settings, by subject; each returns all problems that it finds."""
