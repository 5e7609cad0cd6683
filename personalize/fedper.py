"""FedPer: shared body, personal head. The first of the methods that differ only in which parameters travel."""

from personalize.partial import Partial as FedPer

__all__ = ["FedPer"]
