"""FENDA in NVIDIA FLARE, the client: it keeps its own extractor and the head; fenda_nvflare.py is the job."""

import sys
from pathlib import Path

import nvflare.client as flare
import torch
from task import BATCH, LR, SITES, extractor, head, images
from torch import nn
from torch.nn import functional


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = extractor()

    def forward(self, x):
        return self.layers(x)


class Fenda(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.own, self.head = Shared(), extractor(), head()

    def forward(self, x):
        return self.head(torch.cat([self.own(x), self.shared(x)], dim=1))


def client(folder):
    torch.manual_seed(0)
    net = Fenda()
    flare.init()
    site = SITES[int(flare.get_site_name().rpartition("-")[2]) - 1]
    (x, y), (seen, truth) = images(site, "train"), images(site, "test")
    while flare.is_running():
        received = flare.receive()
        net.shared.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        right = float((net(seen).argmax(dim=1) == truth).float().mean())
        Path(folder, site).write_text(str(right))
        rule = torch.optim.SGD(net.parameters(), lr=LR)
        for part in torch.randperm(len(y)).split(BATCH):
            rule.zero_grad()
            functional.cross_entropy(net(x[part]), y[part]).backward()
            rule.step()
        flare.send(flare.FLModel(params=net.shared.state_dict(), metrics={"accuracy": right}))


if __name__ == "__main__":
    client(sys.argv[1])
