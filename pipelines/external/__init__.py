"""Hospitals outside the federation: how exported models come to them and are adapted there."""
