"""The networks that a YAML can name. One file per network; a new one needs its file and a member of this union."""

from typing import TypeAlias

from federation.models.cam import Cam
from federation.models.clip import Clip
from federation.models.cnn import Cnn
from federation.models.features import Features
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.models.unet import UNet

OnFeatures: TypeAlias = Clip | Features
"""Those that get numbers in place of images, which a hospital computes of each image once."""

AnyModel: TypeAlias = Cam | Clip | Cnn | Features | Mlp | ResNet18 | UNet
