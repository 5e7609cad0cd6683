"""How good, for whom, how sure: counts, metrics, intervals, protocols, figures, report."""
