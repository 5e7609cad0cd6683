"""Methods that end with one model per site."""

from typing import Annotated, TypeAlias, get_args

from federation import Federated
from federation.algorithm import Algorithm
from federation.registry import Group
from personalize.adaptation_rotation import FedTurns
from personalize.apfl import Apfl
from personalize.apple import Apple
from personalize.asymmetric import Asymmetric
from personalize.at_home import AtHome
from personalize.cusfl import CusFL
from personalize.ditto import Ditto
from personalize.dp_head import DpHead
from personalize.fedavg_local import FedAvgLocal
from personalize.fedbabu import FedBabu
from personalize.fedfomo import FedFomo
from personalize.fedrep import FedRep
from personalize.fedrod import FedRod
from personalize.fenda import Fenda
from personalize.heurfedamp import HeurFedAMP
from personalize.iopfl import IopFL
from personalize.moe import MoE
from personalize.moments import Moments
from personalize.partial import Partial
from personalize.perfcl import PerFCL
from personalize.perfedavg import PerFedAvg
from personalize.pfedme import PFedMe
from personalize.pfedmoap import PFedMoAP
from personalize.pgfed import PGFed
from personalize.prompts import ZeroShot

Personal: TypeAlias = (
    Apfl
    | Apple
    | Asymmetric
    | AtHome
    | CusFL
    | Ditto
    | DpHead
    | FedAvgLocal
    | FedBabu
    | FedFomo
    | FedRep
    | FedRod
    | FedTurns
    | Fenda
    | HeurFedAMP
    | IopFL
    | MoE
    | Moments
    | Partial
    | PerFCL
    | PerFedAvg
    | PFedMe
    | PFedMoAP
    | PGFed
    | ZeroShot
)
AnyAlgorithm: TypeAlias = Federated | Personal
"""Every method of ours that a YAML can name. A new method needs its file, a member here, and its test."""

ALGORITHMS = Group("algorithms", "method", get_args(AnyAlgorithm), Algorithm)
NamedAlgorithm: TypeAlias = Annotated[AnyAlgorithm, ALGORITHMS]
"""In settings: one of these, or of an installed package or registered (`federation.registry`)."""
