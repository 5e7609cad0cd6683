"""Attacks that test the protection: membership inference, inversion of gradients, an audit with planted patients."""
