"""What every network keeps: shapes, names of parts, losses of single examples."""

from __future__ import annotations

import torch
from torch import Tensor

from consilium.testing.held import hold, hold_equal
from federation.models.adapted import fixed_in
from federation.randomness import use_seed
from federation.task import Model, Output, Task
from privacy.dp.access import Batch

PARTS = {"stem", "blocks", "head"}


SHAPES = ((1, 32, 32), (1, 16, 16, 16), (8,))
"""Examples that are tried: an image, a volume, a line of a table."""


def accepted_inputs(model: Model) -> tuple[int, ...]:
    """The first shape of `SHAPES` for which the model builds a network; the first of all, if for none."""
    for shape in SHAPES:
        try:
            model.build(inputs=shape, classes=2)
        except (ValueError, RuntimeError):
            continue
        return shape
    return SHAPES[0]


def _make_batch(task: Task) -> tuple[Tensor, Tensor]:
    """Four random examples, and their labels or masks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, *task.inputs, generator=generator)
    dense = task.kind == "segmentation"
    y = torch.randint(task.classes, (4, *task.spatial), generator=generator) if dense else torch.tensor([0, 1, 1, 0])
    return x, y


def outputs_have_the_promised_shapes(task: Task) -> None:
    """Logits for each class, features that methods can compare, parts by their names."""
    network = task.network()
    x, _ = _make_batch(task)
    output = network(x)
    hold(isinstance(output, Output), f"a network returns federation.task.Output, found {type(output).__name__}")
    expected = (4, task.classes, *task.spatial)
    hold(tuple(output.logits.shape) == expected, f"logits must be {expected}, found {tuple(output.logits.shape)}")
    shape = tuple(output.features.shape)
    dims = 2 + len(task.spatial)
    hold(shape[0] == 4 and len(shape) == dims, f"features must have 4 rows and {dims} axes, found {shape}")
    odd = {name.partition(".")[0] for name, _ in network.named_parameters()} - PARTS
    hold(not odd, f"parameters lie in stem, blocks.k and head, found {sorted(odd)}")
    hold(
        any(name.startswith("head.") for name, _ in network.named_parameters()),
        "a network has a part named head with parameters, which methods can keep at home",
    )


def every_parameter_learns_from_losses_of_single_examples(task: Task) -> None:
    """Losses are one for each example and finite, and every parameter has a finite gradient."""
    network = task.network()
    losses = task.objective(network, Batch(*_make_batch(task)))
    hold(tuple(losses.shape) == (4,), f"losses must be one for each of 4 examples, found {tuple(losses.shape)}")
    names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
    odd = [n for n, g in zip(names, gradients, strict=True) if g is None or not bool(torch.isfinite(g).all())]
    hold(not odd, f"parameters without a finite gradient: {odd[:5]}")


def an_example_is_scored_alone_as_among_others(task: Task) -> None:
    """In evaluation no example's probabilities depend on the other examples, and they sum to 1."""
    network = task.network()
    x, _ = _make_batch(task)
    together, alone = task.probabilities(network, x), task.probabilities(network, x, alone=True)
    hold(bool(torch.allclose(together.sum(dim=1), torch.ones(()), atol=1e-5)), "probabilities do not sum to 1")
    hold(bool(torch.allclose(together, alone, atol=1e-5)), "probabilities depend on the other examples of a batch")


def one_seed_gives_one_network(task: Task) -> None:
    """The coordinator's random start is torch's generator and nothing else."""
    made = []
    for _ in range(2):
        with use_seed(7):
            made.append(task.network().state_dict())
    hold_equal(made[0], made[1], "two networks from one seed")


def what_its_author_fixed_is_kept_from_methods_and_is_the_same_everywhere(task: Task) -> None:
    """What needs no gradient is no parameter, and two hospitals that build the network have the same of it."""
    made = []
    for seed in (7, 8):
        with use_seed(seed):
            made.append(task.network())
    odd = [name for name, parameter in made[0].named_parameters() if not parameter.requires_grad]
    hold(not odd, f"need no gradient, and would be sent: {odd[:5]}; wrap the network by federation.models.own.adapted")
    hold_equal(fixed_in(made[0]), fixed_in(made[1]), "what is fixed, which every hospital builds anew,")


LAWS = (
    outputs_have_the_promised_shapes,
    every_parameter_learns_from_losses_of_single_examples,
    an_example_is_scored_alone_as_among_others,
    one_seed_gives_one_network,
    what_its_author_fixed_is_kept_from_methods_and_is_the_same_everywhere,
)
"""Of networks, on a task that they accept."""
