"""Benchmarks: signed models are evaluated at hospitals that never trained, and one page shows the worst first."""
