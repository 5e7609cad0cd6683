"""Training at sites, messages between coordinator and sites, engines, models, and methods that end with one model."""

from typing import TypeAlias

from federation.alone import Alone
from federation.as_begun import AsBegun
from federation.fedavg import FedAvg
from federation.feddg import FedDG
from federation.feddyn import FedDyn
from federation.fedopt import FedOpt
from federation.fedprox import FedProx
from federation.fedsgd import FedSGD
from federation.fedsld import FedSld
from federation.local import Local
from federation.moon import Moon
from federation.scaffold import Scaffold

Federated: TypeAlias = (
    Alone | AsBegun | FedAvg | FedDG | FedDyn | FedOpt | FedProx | FedSGD | FedSld | Local | Moon | Scaffold
)
"""The methods of this folder that a YAML can name. A new method needs its file, a member here, and its test."""
