"""Consilium from Python."""
