"""The networks that a YAML can name. One file per network; a new one needs its file and a member of this union."""

from typing import Annotated, TypeAlias, get_args

from federation.models.cam import Cam
from federation.models.clip import Clip
from federation.models.cnn import Cnn
from federation.models.features import Features
from federation.models.mlp import Mlp
from federation.models.monai import Monai
from federation.models.own import Own
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.registry import Group
from federation.task import Model

OnFeatures: TypeAlias = Clip | Features
"""Those that get numbers in place of images, which a hospital computes of each image once."""

AnyModel: TypeAlias = Cam | Clip | Cnn | Features | Mlp | Monai | Own | ResNet18 | UNet

MODELS = Group("models", "network", get_args(AnyModel), Model)
NamedModel: TypeAlias = Annotated[AnyModel, MODELS]
"""In settings: one of these, or of an installed package or registered (`federation.registry`)."""
