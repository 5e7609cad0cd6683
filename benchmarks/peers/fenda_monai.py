"""FENDA with MONAI's `ClientAlgo`: MONAI has the client's side of a round; who asks and averages is left to others."""

import torch
from monai.fl.client import ClientAlgo
from monai.fl.utils.constants import ExtraItems
from monai.fl.utils.exchange_object import ExchangeObject
from task import BATCH, LR, ROUNDS, SITES, extractor, head, images, told
from torch import nn
from torch.nn import functional


class Fenda(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.own, self.head = extractor(), extractor(), head()

    def forward(self, x):
        return self.head(torch.cat([self.own(x), self.shared(x)], dim=1))


class Hospital(ClientAlgo):
    def initialize(self, extra=None):
        torch.manual_seed(0)
        self.site, self.net = extra[ExtraItems.CLIENT_NAME], Fenda()

    def train(self, data, extra=None):
        self.net.shared.load_state_dict(data.weights)
        (x, y), rule = images(self.site, "train"), torch.optim.SGD(self.net.parameters(), lr=LR)
        for part in torch.randperm(len(y)).split(BATCH):
            rule.zero_grad()
            functional.cross_entropy(self.net(x[part]), y[part]).backward()
            rule.step()

    def get_weights(self, extra=None):
        weights = {name: value.clone() for name, value in self.net.shared.state_dict().items()}
        return ExchangeObject(weights=weights, statistics={"n": len(images(self.site, "train")[1])})

    def evaluate(self, data, extra=None):
        self.net.shared.load_state_dict(data.weights)
        x, y = images(self.site, "test")
        return ExchangeObject(metrics={"accuracy": float((self.net(x).argmax(dim=1) == y).float().mean())})


hospitals = {site: Hospital() for site in SITES}
for site, hospital in hospitals.items():
    hospital.initialize({ExtraItems.CLIENT_NAME: site})
shared = extractor().state_dict()
for _ in range(ROUNDS):
    for hospital in hospitals.values():
        hospital.train(ExchangeObject(weights=shared))
    replies = [hospital.get_weights() for hospital in hospitals.values()]
    total = sum(reply.statistics["n"] for reply in replies)
    shared = {name: sum(r.weights[name] * (r.statistics["n"] / total) for r in replies) for name in shared}
scores = {site: hospital.evaluate(ExchangeObject(weights=shared)) for site, hospital in hospitals.items()}
told("MONAI FL", {site: score.metrics["accuracy"] for site, score in scores.items()})
