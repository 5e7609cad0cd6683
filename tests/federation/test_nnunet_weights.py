"""A planned network with nnU-Net's weights computes what nnU-Net's network computes, written down here once more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.models.nnunet_weights import rename_nnunet_tensors
from federation.models.planned import Planned
from federation.parameters import loaded
from federation.weights import select_fitting_tensors

FLAT = Planned(
    patch=(8, 16),
    kernels=((3, 3),) * 4,
    strides=((1, 1), (2, 2), (2, 2), (1, 2)),
    filters=(8, 8, 16, 16),
    up_bias=True,
)
DEEP = Planned(
    patch=(4, 8, 8),
    kernels=((1, 3, 3), (3, 3, 3), (3, 3, 3)),
    strides=((1, 1, 1), (1, 2, 2), (2, 2, 2)),
    filters=(8, 16, 24),
    up_bias=True,
)
PLANS = pytest.mark.parametrize("plan", [FLAT, DEEP], ids=["2-D", "3-D"])
CLASSES = 3


def invent_file(plan: Planned, channels: int = 1) -> dict[str, Tensor]:
    """The state of nnU-Net's network, with its names, its biases and its second copies."""
    axes, generator = len(plan.patch), torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        tensors[name] = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)

    def add_block(name: str, wide: int, width: int, kernel: tuple[int, ...]) -> None:
        for number, inputs in enumerate((wide, width)):
            for part, shape in (("conv", (width, inputs, *kernel)), ("norm", (width,))):
                add(f"{name}.convs.{number}.{part}.weight", *shape)
                add(f"{name}.convs.{number}.{part}.bias", width)
                tensors[f"{name}.convs.{number}.all_modules.{part}"] = tensors[f"{name}.convs.{number}.{part}.weight"]

    wide = channels
    for stage, width in enumerate(plan.filters):
        add_block(f"encoder.stages.{stage}.0", wide, width, plan.kernels[stage])
        wide = width
    for up, stage in enumerate(reversed(range(1, len(plan.filters)))):
        low, high = plan.filters[stage], plan.filters[stage - 1]
        add(f"decoder.transpconvs.{up}.weight", low, high, *plan.strides[stage])
        add(f"decoder.transpconvs.{up}.bias", high)
        add_block(f"decoder.stages.{up}", 2 * high, high, plan.kernels[stage - 1])
        add(f"decoder.seg_layers.{up}.weight", CLASSES, high, *[1] * axes)
        add(f"decoder.seg_layers.{up}.bias", CLASSES)
    return tensors | {f"decoder.{name}": tensor for name, tensor in tensors.items() if name.startswith("encoder.")}


def pass_nnunet(tensors: dict[str, Tensor], plan: Planned, x: Tensor) -> list[Tensor]:
    """What nnU-Net's network gives at all resolutions, the highest first."""
    axes = len(plan.patch)
    conv = functional.conv3d if axes == 3 else functional.conv2d
    raised = functional.conv_transpose3d if axes == 3 else functional.conv_transpose2d

    def pass_block(h: Tensor, name: str, stride: tuple[int, ...]) -> Tensor:
        for number in (0, 1):
            weight, bias = (tensors[f"{name}.convs.{number}.conv.{part}"] for part in ("weight", "bias"))
            padding = [(side - 1) // 2 for side in weight.shape[2:]]
            h = conv(h, weight, bias, stride=stride if number == 0 else 1, padding=padding)
            scale, shift = (tensors[f"{name}.convs.{number}.norm.{part}"] for part in ("weight", "bias"))
            h = functional.leaky_relu(functional.instance_norm(h, weight=scale, bias=shift), 0.01)
        return h

    skips, h = [], x
    for stage, stride in enumerate(plan.strides):
        h = pass_block(h, f"encoder.stages.{stage}.0", stride)
        skips.append(h)
    answers = list[Tensor]()
    for up, stage in enumerate(reversed(range(1, len(plan.filters)))):
        weight, bias = (tensors[f"decoder.transpconvs.{up}.{part}"] for part in ("weight", "bias"))
        h = raised(h, weight, bias, stride=plan.strides[stage])
        h = pass_block(torch.cat([h, skips[stage - 1]], dim=1), f"decoder.stages.{up}", (1,) * axes)
        answers.insert(0, conv(h, *(tensors[f"decoder.seg_layers.{up}.{part}"] for part in ("weight", "bias"))))
    return answers


def build_begun(plan: Planned, tensors: dict[str, Tensor]) -> nn.Module:
    network = plan.build(inputs=(1, *plan.patch), classes=CLASSES).double()
    return loaded(network, select_fitting_tensors(tensors, network))


@PLANS
@pytest.mark.parametrize("supervised", [True, False])
def test_a_network_with_nnunets_weights_answers_as_nnunets(plan: Planned, supervised: bool) -> None:
    plan, tensors = replace(plan, deep_supervision=supervised), invent_file(plan)
    x = torch.randn(2, 1, *plan.patch, dtype=torch.float64)
    module = build_begun(plan, tensors)
    answers = pass_nnunet(tensors, plan, x)
    assert torch.allclose(module.eval()(x).logits, answers[0], atol=1e-9)
    output = module.train()(x)
    assert len(output.deep) == (len(answers) - 2 if supervised else 0)
    assert all(torch.allclose(*pair, atol=1e-9) for pair in zip(output.deep, answers[1:], strict=False))


@PLANS
def test_every_tensor_of_the_network_comes_from_the_file(plan: Planned) -> None:
    network = plan.build(inputs=(1, *plan.patch), classes=CLASSES)
    renamed = rename_nnunet_tensors(invent_file(plan), plan)
    assert set(renamed) == set(network.state_dict())


def test_what_does_not_fit_is_told_with_what_to_say() -> None:
    tensors = invent_file(FLAT)
    with pytest.raises(ValueError, match=r"say model\.up_bias: true"):
        build_begun(replace(FLAT, up_bias=False), tensors)
    with pytest.raises(ValueError, match=r"model.norm group: say instance"):
        build_begun(replace(FLAT, norm="group"), tensors)
    strange = tensors | {"encoder.stages.4.0.convs.0.conv.weight": torch.zeros(8)}
    with pytest.raises(ValueError, match=r"1 are none of the network's: encoder\.stages\.4"):
        build_begun(FLAT, strange)
    with pytest.raises(ValueError, match=r"another shape: stem\.conv1\.conv\.weight"):
        build_begun(FLAT, tensors | {"encoder.stages.0.0.convs.0.conv.weight": torch.zeros(8, 2, 3, 3)})


@PLANS
def test_for_other_classes_all_but_the_head_comes_from_the_file(plan: Planned) -> None:
    network = replace(plan, deep_supervision=False).build(inputs=(1, *plan.patch), classes=CLASSES + 2)
    tensors = select_fitting_tensors(invent_file(plan), network, head="fresh")
    assert set(network.state_dict()) - set(tensors) == {"head.weight", "head.bias"}
