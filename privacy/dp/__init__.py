"""Differential privacy: access to patients, mechanisms, events and what they cost."""
