"""Fixed features of images: numbers that depend on no patient's training, on which a head is trained. One file for each
extractor."""

from typing import Annotated, TypeAlias, get_args

from federation.features.detector import Detector, load_detector
from federation.features.encoder import Encoder, load_encoder
from federation.features.extracting import Extracting, Extractor
from federation.features.joined import Joined, JoinedExtractor, Part, Ready
from federation.features.lite0 import Lite0, load_lite0
from federation.features.onnx_encoder import FileEncoder, OnnxEncoder, load_onnx_encoder
from federation.registry import Group

__all__ = [
    "EXTRACTORS", "AnyExtractor", "Detector", "Encoder", "Extracting", "Extractor", "FileEncoder", "Joined",
    "Lite0", "OnnxEncoder", "Part", "Ready",
    "load_extractor", "select_weighted_part",
]  # fmt: skip

EXTRACTORS = Group(
    "features", "extractor of features", get_args(Ready | Detector | FileEncoder | Lite0 | Joined), Extracting
)
AnyExtractor: TypeAlias = Annotated[Ready | Detector | FileEncoder | Lite0 | Joined, EXTRACTORS]
"""Every extractor that a YAML can name. A new one needs its file and a member here.

`complaints(inputs)` says why examples of a shape have no such features. Those of `Ready` compute features themselves;
`load_extractor` makes an `Extractor` of any.
"""


def select_weighted_part(extractor: AnyExtractor) -> Detector | FileEncoder | Lite0 | None:
    """The extractor itself, or the part of a joined one, whose features depend on weights; None if none do."""
    parts = extractor.of if isinstance(extractor, Joined) else (extractor,)
    return next((part for part in parts if isinstance(part, Detector | FileEncoder | Lite0)), None)


def load_extractor(extractor: AnyExtractor, weights: bytes = b"") -> Extractor:
    """What computes features. weights: the bytes of an encoder's file, what a detector learnt, or `lite0`'s weights.

    Raises:
        ValueError: they are not those of this encoder, or of no such detector.
    """
    if isinstance(extractor, Joined):
        return JoinedExtractor(tuple(load_extractor(part, weights) for part in extractor.of))
    if isinstance(extractor, Encoder):
        return load_encoder(extractor, weights)
    if isinstance(extractor, OnnxEncoder):
        return load_onnx_encoder(extractor, weights)
    if isinstance(extractor, Lite0):
        return load_lite0(extractor, weights)
    return load_detector(extractor, weights) if isinstance(extractor, Detector) else extractor
