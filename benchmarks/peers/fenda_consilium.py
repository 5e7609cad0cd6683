"""FENDA in Consilium: one's own tensors, one's own network by the names of its parts, the method by name."""

import sys

import torch
from task import BATCH, FEATURES, LR, ROUNDS, SITES, extractor, images, told
from torch import nn

from consilium import Examples, own, train


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.extractor, self.head = extractor(), nn.Linear(FEATURES, 2)

    def forward(self, x):
        return self.head(self.extractor(x))


def hospital(site):
    (x, y), (seen, truth) = images(site, "train"), images(site, "test")
    split = ["train"] * len(y) + ["test"] * len(truth)
    return Examples(torch.cat([x, seen]), torch.cat([y, truth]), patient="each", split=split)


results = train(
    {site: hospital(site) for site in SITES},
    model=own(Network, stem="extractor", head="head"),
    method="fenda",
    rounds=ROUNDS,
    work={"optimizer": "sgd", "lr": LR, "batch": BATCH},
    settings={"evaluate": {"checkpoint": "latest"}},
    folder=sys.argv[1],
)
told("Consilium", {site: results.score("fenda", site, "accuracy").value for site in SITES})
