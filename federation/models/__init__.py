"""The networks that a YAML can name. One file a network; a new one is its file and its place in this union."""

from typing import TypeAlias

from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.models.unet import UNet

AnyModel: TypeAlias = Cam | Cnn | Mlp | ResNet18 | UNet
