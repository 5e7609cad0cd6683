"""FedDG: segmentation trained on images in the style of other hospitals, by episodes of meta-learning.

Liu, Chen, Qin, Dou, Heng: FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in
Continuous Frequency Space, CVPR 2021, sections 3.2 and 3.3, with released code (liuquande/FedDG-ELCFS); a row of
IOP-FL's table II. One model for all hospitals, meant for external sites.

**What it reveals.** In its introduction a hospital releases the amplitudes of the lowest frequencies of up to `spectra`
of its training images, drawn at random, and every other hospital receives them. A method has one recipient, so it is
all sites in the rounds as well. The paper calls this private because phases stay. It is no private release: these are
numbers of single patients, without noise. So few numbers do not determine an image, but they contain mean brightness
and coarse shading, which can reveal a scanner, a disease, or that a known image is among them. Private training is
refused.

Our readings. A batch is meta-train; meta-test are the same images with the amplitudes of others, one draw per image
and step, as in the code. The code exchanges the mean of an image alone (a window of 0), and fully (lambda = 1); its
demonstration interpolates in a window of 1, and so does the paper between 0 and 1: here. The outer gradient reaches
theta through theta' as if the inner gradient were constant: first order, as in the code, which also clamps inner
gradients at 100 (not here). The loss is the task's (the paper's: Dice alone). The contrast is one of the batch, so it
is no mean over examples. Batch norms, of which the code has none, see both kinds of images. The code clips images to
the range of pixels, which is not known here. amplitude.py has the interpolation, boundary.py the contrast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from federation.algorithm import Memory, Recipient, State
from federation.amplitude import interpolate_amplitudes, low_amplitudes
from federation.boundary import boundary_contrast
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights, merged, reply
from federation.parameters import loaded, prefixed, section, trainable_parameters
from federation.task import Output, Task, is_segmenting
from privacy.dp.access import Batch, Draw, Forward, Objective
from privacy.message import Call, Message, Params
from privacy.settings_error import out_of_range, refuse, unmet

WINDOW, SPECTRA = 8, 64
"""Upper limits of a hospital's release: all amplitudes of an image can suffice to compute its phases."""
SHARE = 0.25
"""Largest share of an image's frequencies whose amplitudes leave: our choice, a window of 8 at 34 pixels."""


@dataclass(frozen=True, kw_only=True)
class FedDG:
    """L(x; theta) + L(t; theta') + gamma L_boundary, with theta' = theta - beta grad L(x; theta) (equation 4).

    t: images x with amplitudes (1 - lambda) A(x) + lambda A(other hospital's), lambda uniform in [0, 1], in a window of
    frequencies up to `window` cycles an image. L_boundary: InfoNCE with temperature tau, of the mean features on a
    structure's edge, of x and of t, against those around it. spectra: the most images whose amplitudes a hospital
    releases; 0 at a hospital: none of its own. Where nobody else released any, t = x.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    averaging: ClassVar = True
    recipient: ClassVar[Recipient] = "sites"
    needs_classes: ClassVar = "it contrasts the edges of structures in masks"

    name: Literal["feddg"] = "feddg"
    beta: float = 1e-3
    gamma: float = 0.1
    tau: float = 0.05
    window: int = 1
    spectra: int = 8
    rim: int = 5
    weights: Weights = "size"

    def __post_init__(self) -> None:
        problems = out_of_range(
            self, beta=(0, 1000), gamma=(0, 1000), window=(0, WINDOW), spectra=(0, SPECTRA), rim=(0, 1000)
        )
        refuse(problems + unmet(self, tau=(self.tau > 0, "> 0")))

    def network(self, task: Task) -> nn.Module:
        """Raises: ValueError: images so small that the window contains most of their frequencies."""
        self._check_window(task)
        return task.network()

    def _check_window(self, task: Task) -> None:
        """Raises: ValueError: the window holds a larger share of frequencies than `SHARE`."""
        sides = task.inputs[1:]
        share = math.prod(min(2 * self.window + 1, side) / side for side in sides)
        if sides and self.spectra and share > SHARE:
            raise ValueError(
                f"feddg: a window of {self.window} holds {100 * share:.0f} % of the frequencies of images of "
                f"{list(sides)}, at most {100 * SHARE:g} % may leave: say a smaller window, or larger images"
            )

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        problems = []
        if not is_segmenting(module):
            problems.append("feddg contrasts the edges of masks, and labels have none: choose fedavg, or learn masks")
        if private:
            problems.append(
                "feddg hands amplitude spectra of single training images to all sites, which no noise covers: train it "
                "without differential privacy, or choose fedavg"
            )
        return problems

    def introduce(self, site: Site) -> Message:
        if self.spectra == 0:
            return Message()
        draw = site.draw(full=True)
        if not isinstance(draw, Draw):
            raise ValueError("feddg was asked for spectra under differential privacy; its complaints say why not")
        # The coordinator sets the window, but the hospital is responsible for the release.
        self._check_window(site.task)
        chosen = torch.randperm(len(draw.x))[: self.spectra].to(draw.x.device)
        return Message({"spectra": low_amplitudes(draw.x[chosen], self.window)})

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        """Raises: ValueError: spectra of sites differ in shape, or are not finite and >= 0."""
        spectra = {
            site: introduction.tensors["spectra"]
            for site, introduction in sorted(introductions.items())
            if introduction.tensors
        }
        shapes = {site: tuple(spectrum.shape[1:]) for site, spectrum in spectra.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"feddg: spectra differ in shape, {shapes}: let no site set a window of its own")
        if wrong := [site for site, spectrum in spectra.items() if not (spectrum.isfinite() & (spectrum >= 0)).all()]:
            raise ValueError(f"feddg: amplitudes must be finite and >= 0, found others from {', '.join(wrong)}")
        return Message({**prefixed("model", initial), **prefixed("spectra", spectra)})

    def send(self, state: State, site: str, call: Call) -> Message:
        other_spectra = [
            spectrum for name, spectrum in sorted(section(state.tensors, "spectra").items()) if name != site
        ]
        sent = prefixed("model", section(state.tensors, "model"))
        return Message(
            {**sent, "others": torch.cat(other_spectra)} if other_spectra and call.request == "train" else sent
        )

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))
        # Seeded by the request: the state of the global generator depends on the memory of the site.
        generator = torch.Generator().manual_seed(torch.initial_seed())
        objective = self._objective(site.task, module, received.tensors.get("others"), generator)
        descent = site.descend(module, objective, optimizer=section(memory.tensors, "optimizer"))
        return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        spectra = prefixed("spectra", section(state.tensors, "spectra"))
        return Message({**prefixed("model", merged(replies, self.weights)), **spectra})

    model = FedAvg.model

    def _objective(
        self, task: Task, module: nn.Module, other_spectra: Tensor | None, generator: torch.Generator
    ) -> Objective:
        """The loss of an episode for each example (b,); the contrast belongs to the batch, and is added to every
        example.
        """

        def objective(forward: Forward, batch: Batch) -> Tensor:
            if batch.y is None:
                raise TypeError("feddg learns masks, found none")
            theta, inner = trainable_parameters(module), _check_output(forward(batch.x))
            loss = task.objective(lambda _: inner, batch)
            slopes = torch.autograd.grad(loss.mean(), list(theta.values()), retain_graph=True)
            fast = {name: p - self.beta * g for (name, p), g in zip(theta.items(), slopes, strict=True)}
            outer = _check_output(
                functional_call(module, fast, (self._restyle_images(batch.x, other_spectra, generator),))
            )
            views, loss = [inner.features, outer.features], loss + task.objective(lambda _: outer, batch)
            if self.gamma == 0:
                return loss
            boundary = boundary_contrast(views, batch.y, classes=task.classes, rim=self.rim, tau=self.tau)
            return loss + self.gamma * boundary

        return objective

    def _restyle_images(self, x: Tensor, other_spectra: Tensor | None, generator: torch.Generator) -> Tensor:
        """t for each image x (b, C, *spatial): a random one of the other spectra (m, C, *low), and a random lambda."""
        if other_spectra is None or len(other_spectra) == 0:
            return x
        chosen = torch.randint(len(other_spectra), (len(x),), generator=generator)
        lam = torch.rand(len(x), generator=generator)
        return interpolate_amplitudes(x, other_spectra[chosen.to(other_spectra.device)], lam.to(x), self.window)


def _check_output(output: object) -> Output:
    """A network's result, checked to be `Output`."""
    if not isinstance(output, Output):
        raise TypeError(f"a network returns Output, found {type(output).__name__}")
    return output
