"""The networks that a YAML can name. One file per network; a new one needs its file and a member of this union."""

from typing import Annotated, TypeAlias, get_args

from federation.models.cam import Cam
from federation.models.clip import Clip
from federation.models.cnn import Cnn
from federation.models.features import Features
from federation.models.lite0 import PartlyTrained
from federation.models.mlp import Mlp
from federation.models.monai import Monai
from federation.models.own import Own
from federation.models.planned import Planned
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.registry import Group
from federation.task import Model

OnFeatures: TypeAlias = Clip | Features
"""Networks whose input are features, which a hospital computes once for each image."""

AnyModel: TypeAlias = Cam | Clip | Cnn | Features | Mlp | Monai | Own | PartlyTrained | Planned | ResNet18 | UNet

MODELS = Group("models", "network", get_args(AnyModel), Model)
NamedModel: TypeAlias = Annotated[AnyModel, MODELS]
"""In settings: one of these, or a network of an installed package, or a registered one (`federation.registry`)."""
