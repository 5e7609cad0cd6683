"""FedPer: shared body, personal head; one of the methods of `personalize/partial.py`."""

from personalize.partial import Partial as FedPer

__all__ = ["FedPer"]
