"""Adapt exported models to an external site's images, write the result to a file, and read it.

`routed.safetensors`, beside the results, holds the exported models, the adapted state, and the settings of images.
`pipelines.predict` uses it like a site's model, so that later images need no adaptation. It depends on the site's
patients, so it stays there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from federation.parameters import loaded, prefixed, section
from federation.randomness import use_seed
from federation.task import Kind
from personalize.adaptation import Adapted
from personalize.adaptation_baselines import Tent, ensemble, tent
from personalize.adaptation_norms import AtTest, by_test_statistics
from personalize.routing import Routed, build_routed, coefficients
from personalize.routing_outside import Routing
from personalize.routing_outside import route_experts as route_to
from pipelines.data.sources import SOURCE, Files
from pipelines.external.models_file import (
    ADAPTED,
    GLOBAL,
    Models,
    ModelsDescription,
    checked_experts,
    parse_facts,
    read_sealed,
    shown_names,
    what_is,
)
from pipelines.external.settings import How
from pipelines.loader.validation import to_plain
from pipelines.models.file import Origin, Ready, read_ready
from pipelines.models.translator_file import remove_places
from pipelines.settings.route import NEEDS, PERSONAL, SHARED
from privacy.formats import LaterVersion
from privacy.message import Malformed, Message, Params, as_mapping, seal_parts, to_bytes
from privacy.system_errors import of_path

STATE = ":state"
"""Prefix of an adapted state's tensors; no site has this name."""
LARGEST_KEPT = 2**30  # bytes


@dataclass(frozen=True, kw_only=True)
class AdaptedDescription:
    """The facts of `routed.safetensors`. label: the algorithm name in masks. models: description of the exported
    models. source: how images were found here, without paths. gland: whether they were cropped about gland masks.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    what: Literal["adapted"] = "adapted"
    format: Literal[1] = 1
    label: str
    models: ModelsDescription
    how: How
    source: Annotated[Files, Field(discriminator="kind")]
    gland: bool


def build_networks(models: Models, how: How, device: str = "cpu") -> list[nn.Module]:
    """The models that `how` needs, in the file's order, the shared one last."""
    modules = []
    for expert, params in models.experts.items():
        if (SHARED if expert == GLOBAL else PERSONAL) in NEEDS[how.name]:
            part = models.described.part_of(expert)
            network = part.algorithm.network(models.described.task(part))
            modules.append(loaded(network, params).to(device).eval())
    return modules


def adapt_network(
    experts: Sequence[nn.Module], x: Tensor, how: How, *, kind: Kind, seed: int
) -> tuple[nn.Module, Adapted | None]:
    """One network adapted to images x (n, *inputs), on their device; and the course of the adaptation, if there was
    one.

    Raises:
        ValueError: the models cannot be adapted in this way.
    """
    with use_seed(seed):  # dropout takes torch's own generator
        if isinstance(how, Routing):
            return route_to(experts, x, how, kind=kind, seed=seed)
        if isinstance(how, Tent):
            return tent(experts[-1], x, how, kind=kind, seed=seed)
    return _build_unadapted(experts, how), None


def _build_unadapted(experts: Sequence[nn.Module], how: How) -> nn.Module:
    """The network before adaptation."""
    if isinstance(how, Routing):
        return build_routed(experts, layerwise=how.layerwise, statistics=how.statistics, affine=how.affine)
    if isinstance(how, Tent):
        module = AtTest(deepcopy(experts[-1]))
        by_test_statistics(module.network, "set", "trained")
        return module
    return ensemble(experts) if how.name == "ensemble" else experts[-1]


def shares_of_experts(
    module: nn.Module, x: Tensor, experts: Sequence[str], *, batch: int
) -> dict[str, dict[str, float]]:
    """Of a routed network: layer -> expert -> its mean coefficient over images x. Empty for any other network."""
    if not isinstance(module, Routed):
        return {}
    mean_coefficients = torch.cat([coefficients(module, part) for part in torch.split(x, batch)]).mean(dim=0)
    return {
        name: dict(zip(experts, row.tolist(), strict=True))
        for name, row in zip(module.layers, mean_coefficients, strict=True)
    }


def describe_adapted(models: Models, label: str, how: How, source: Files, *, gland: bool) -> AdaptedDescription:
    """The facts of an adapted model, with only the experts that `how` uses."""
    described = models.described
    needed = NEEDS[how.name]
    used = replace(
        described,
        experts=tuple(name for name in described.experts if (SHARED if name == GLOBAL else PERSONAL) in needed),
        personal=described.personal if PERSONAL in needed else None,
        shared=described.shared if SHARED in needed else None,
    )
    without_places = SOURCE.validate_json(json.dumps(remove_places(source)), strict=True)
    return AdaptedDescription(label=label, models=used, how=how, source=without_places, gland=gland)


def adapted_bytes(description: AdaptedDescription, experts: Mapping[str, Params], state: Params) -> bytes:
    """The bytes of an adapted model's file. experts: those of the exported file."""
    tensors = dict(prefixed(STATE, state))
    for name in description.models.experts:
        tensors |= prefixed(name, experts[name])
    return seal_parts(to_bytes(Message(tensors, as_mapping(to_plain(description)))))


def ready_of(description: AdaptedDescription, module: nn.Module, digest: str) -> Ready:
    """The adapted network as a model for `pipelines.predict`."""
    described = description.models
    part = described.part_of(described.experts[-1])
    task, names = described.task(part), shown_names(described)
    return Ready(
        module.eval(),
        task,
        described.images,
        description.source,
        description.gland,
        None,
        None,
        Origin(label=description.label),
        lambda x: x,
        names=names,
        ordered=described.ordered,
        digest=digest,
        window=task.patch,
    )


def read_adapted(path: Path) -> Ready:
    """Read an adapted model.

    Raises:
        ValueError: it is none, is damaged or malformed, is too large, or of another version.
        OSError: it cannot be read.
    """
    try:
        message, digest = read_sealed(path)
        description = parse_facts(message.facts, AdaptedDescription)
        state = section(message.tensors, STATE)
        other_tensors = {name: value for name, value in message.tensors.items() if not name.startswith(f"{STATE}/")}
        models = Models(description.models, checked_experts(description.models, other_tensors), digest)
        module = _restore_network(build_networks(models, description.how), description.how, state)
        return ready_of(description, module, digest)
    except LaterVersion as error:
        raise LaterVersion(f"{path}: {error}") from error
    except (Malformed, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{path} is not an adapted model ({error}); give routed.safetensors, which `pipelines.run` writes for an "
            "external site"
        ) from error


def read_model(path: Path) -> Ready:
    """Read a model: of a site of a run, or adapted at an external site.

    Raises:
        ValueError: as `read_ready` and `read_adapted`; or no file is there, or none that may be opened.
        OSError: as they do, for other reasons.
    """
    try:
        return read_adapted(path) if what_is(path) == ADAPTED else read_ready(path)
    except OSError as error:
        if not of_path(error):
            raise
        problem = f"{path} cannot be read ({error.strerror}); name a model's file that you may read"
        raise ValueError(problem) from error


def _restore_network(experts: Sequence[nn.Module], how: How, state: Mapping[str, Tensor]) -> nn.Module:
    module = _build_unadapted(experts, how)
    expected_state = module.state_dict()
    odd = [
        name for name, value in state.items() if name not in expected_state or expected_state[name].shape != value.shape
    ]
    if odd:
        raise ValueError(f"its state does not fit the network: {', '.join(sorted(odd)[:3])}")
    module.load_state_dict(dict(state), strict=False)
    return module.eval()


def digest_of(data: bytes) -> str:
    """Of a file, 16 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]
