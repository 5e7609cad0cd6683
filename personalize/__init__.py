"""Methods that end with one model per site."""

from typing import TypeAlias

from federation import Federated
from personalize.fedper import FedPer

AnyAlgorithm: TypeAlias = Federated | FedPer
"""Every method that a YAML can name: a new one is its file, its place here, and its test."""
