"""FENDA in Fed-BioMed: a training plan whose own extractor and head are tagged local; a node process for each site."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from task import BATCH, LR, ROUNDS, SITES, extractor, head, images, told
from torch import nn
from torch.nn import functional

folder = Path(sys.argv[1])
os.environ["FBM_RESEARCHER_COMPONENT_ROOT"] = str(folder / "researcher")  # read by the imports

from fedbiomed.common.datamanager import DataManager  # noqa: E402
from fedbiomed.common.dataset import CustomDataset  # noqa: E402
from fedbiomed.common.training_plans import TorchTrainingPlan  # noqa: E402
from fedbiomed.researcher.aggregators.fedavg import FedAverage  # noqa: E402
from fedbiomed.researcher.federated_workflows import Experiment  # noqa: E402


class Fenda(TorchTrainingPlan):
    def init_dependencies(self):
        return [
            "import torch",
            "from torch import nn",
            "from torch.nn import functional",
            "from task import extractor, head",
            "from fedbiomed.common.datamanager import DataManager",
            "from fedbiomed.common.dataset import CustomDataset",
        ]

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.own, self.head = extractor(), extractor(), head()

        def forward(self, x):
            return self.head(torch.cat([self.own(x), self.shared(x)], dim=1))

    class Hospital(CustomDataset):
        def read(self):
            self.x, self.y = torch.load(f"{self.path}/train.pt")

        def __len__(self):
            return len(self.y)

        def get_item(self, index):
            return self.x[index], self.y[index]

    def init_model(self, model_args):
        return self.Network()

    def init_optimizer(self, optimizer_args):
        return torch.optim.SGD(self.model().parameters(), lr=optimizer_args["lr"])

    def tag_parameters(self, name):
        return set() if name.startswith("shared.") else {"local", "persistent"}

    def training_data(self):
        self.hospital = self.Hospital()
        return DataManager(self.hospital, shuffle=True)

    def training_step(self, data, target):
        return functional.cross_entropy(self.model().forward(data), target)

    def testing_step(self, data, target):
        x, y = torch.load(f"{self.hospital.path}/test.pt")
        right = float((self.model().forward(x).argmax(dim=1) == y).float().mean())
        with open(f"{self.hospital.path}/accuracy", "w") as file:
            file.write(str(right))
        return {"accuracy": right}


def command(*words):
    return [str(Path(sys.executable).with_name("fedbiomed")), *map(str, words)]


nodes = []
for site in SITES:
    place, data = folder / f"node-{site}", folder / site
    data.mkdir()
    for split in ("train", "test"):
        torch.save(images(site, split), data / f"{split}.pt")
    described = {"name": site, "description": site, "tags": "squares", "data_type": "custom", "path": str(data)}
    (folder / f"{site}.json").write_text(json.dumps(described))
    subprocess.run(command("component", "create", "-c", "NODE", "-p", place, "-n", site), check=True)  # noqa: S603
    subprocess.run(command("node", "-p", place, "dataset", "add", "--file", folder / f"{site}.json"), check=True)  # noqa: S603
    nodes.append(subprocess.Popen(command("node", "-p", place, "start")))  # noqa: S603
try:
    experiment = Experiment(
        tags=["squares"],
        training_plan_class=Fenda,
        training_args={
            "loader_args": {"batch_size": BATCH},
            "optimizer_args": {"lr": LR},
            "epochs": 1,
            "test_ratio": 0.1,
            "test_on_global_updates": True,
        },
        aggregator=FedAverage(),
        round_limit=ROUNDS,
    )
    while len(experiment.set_training_data(None, from_tags=True).node_ids()) < len(SITES):
        time.sleep(5)  # until the nodes have started
    experiment.run()
finally:
    for node in nodes:
        node.terminate()
told("Fed-BioMed", {site: float((folder / site / "accuracy").read_text()) for site in SITES})
