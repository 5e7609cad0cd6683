"""FedAvg here, in pfl-research and in Flower's simulation: python -m benchmarks.speed.frameworks

The others live in environments of their own, never in this project's; what is not there is named and skipped:

    python -m venv PFL && PFL/bin/pip install "pfl[pytorch]==0.6.0"
    python -m venv FLOWER && FLOWER/bin/pip install "flwr[simulation]==1.41.0" torch
    python -m benchmarks.speed.frameworks --pfl PFL/bin/python --flower FLOWER/bin/python

The same work everywhere: 12 sites of 120 noise images of 32 pixels, a group-norm CNN of 26,000 parameters in plain
torch's words, one local epoch of SGD in batches of 24 from the global model, the mean by size, no evaluation; one
thread, one site at a time. Ours is what `pipelines.run` does: hospitals with gate, ledger and fsync. Each framework is
a process, and the processes take turns, a round each. Environments differ in their torch, so every process has a bare
loop of the same work too, whose turn comes beside the framework's: the ratio to it is what compares. CPU: processor
time of the process and all that it started. Loss: of the last model over all images, where chance is 0.69.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SITES, IMAGES, SIDE, BATCH, LR = 12, 120, 32, 24, 0.05
WIDTHS = (1, 16, 24, 32, 48)
TURNS = 5  # and one more that is not counted


Params = dict[str, Tensor]
Turn = Callable[[Params], None]
"""Called with the global model before the first round and after each."""


class Net(nn.Module):
    """What `federation.models.cnn` is with group norm."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(WIDTHS):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(2 * WIDTHS[-1], 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).flatten(2)
        logits: Tensor = self.head(torch.cat([h.mean(dim=2), h.amax(dim=2)], dim=1))
        return logits


def patients(site: int) -> tuple[Tensor, Tensor]:
    """Noise with a bright square where the label is 1."""
    made = torch.Generator().manual_seed(site)
    y = torch.randint(2, (IMAGES,), generator=made)
    x = torch.randn(IMAGES, 1, SIDE, SIDE, generator=made)
    x[:, :, SIDE // 3 : 2 * SIDE // 3, SIDE // 3 : 2 * SIDE // 3] += y.view(-1, 1, 1, 1).float()
    return x, y


def trained(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """One local epoch."""
    rule = torch.optim.SGD(net.parameters(), lr=LR)
    for part in torch.randperm(len(y)).split(BATCH):
        rule.zero_grad()
        functional.cross_entropy(net(x[part]), y[part]).backward()
        rule.step()


class Bare:
    """FedAvg by hand, and the loss of any model."""

    def __init__(self) -> None:
        self.data = [patients(site) for site in range(SITES)]
        torch.manual_seed(0)
        self.net = Net()
        self.start = {name: value.clone() for name, value in self.net.state_dict().items()}

    def round(self) -> None:
        total = {name: torch.zeros_like(value) for name, value in self.start.items()}
        for x, y in self.data:
            self.net.load_state_dict(self.start)
            trained(self.net, x, y)
            for name, value in self.net.state_dict().items():
                total[name] += value / len(self.data)
        self.start = total

    def loss(self, params: Params) -> float:
        net = Net()
        net.load_state_dict(params)
        with torch.no_grad():
            losses = [functional.cross_entropy(net(x), y) for x, y in self.data]
        return float(torch.stack(losses).mean())


def processor() -> float:
    """Seconds of processor time of this process and of all that descend from it."""
    parents, spent = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                said = (folder / "stat").read_text().rpartition(") ")[2].split()
            except OSError:  # it ended meanwhile
                continue
            parents[int(folder.name)] = int(said[1])
            spent[int(folder.name)] = int(said[11]) + int(said[12])
    own, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in own} - own
        own, grown = own | more, bool(more)
    return sum(spent[pid] for pid in own) / os.sysconf("SC_CLK_TCK")


class Waiting:
    """A child's side of the turns: told to go, the bare loop has its round, then the framework."""

    def __init__(self, out: Any) -> None:
        self.bare, self.out, self.begun = Bare(), out, (0.0, 0.0)
        self.said: dict[str, list[float]] = {}

    def __call__(self, params: Params) -> None:
        ended = (time.perf_counter(), processor())
        if self.said:
            self.said["its"] = [now - then for now, then in zip(ended, self.begun, strict=True)]
        loss = {"loss": self.bare.loss(params), "bare_loss": self.bare.loss(self.bare.start)}
        self.tell({**self.said, **loss, "torch": torch.__version__})
        if not sys.stdin.readline().strip():
            self.out.close()
            os._exit(0)  # frameworks that wait for their own daemons would keep the parent waiting
        begun = (time.perf_counter(), processor())
        self.bare.round()
        self.begun = (time.perf_counter(), processor())
        self.said = {"bare": [now - then for now, then in zip(self.begun, begun, strict=True)]}

    def tell(self, said: Mapping[str, Any]) -> None:
        self.out.write(json.dumps(said) + "\n")
        self.out.flush()


def ours(turn: Turn, place: Path) -> None:
    from benchmarks.speed.engine import cohort, federated
    from federation.descent import Work
    from federation.fedavg import FedAvg
    from federation.models.cnn import Cnn
    from federation.task import Task

    names = list(Net().state_dict())
    task = Task(Cnn(norm="group"), (1, SIDE, SIDE), 2)
    admitted = {}
    for site in range(SITES):
        x, y = patients(site)
        one = cohort(site, IMAGES, 0.0)
        admitted[f"s{site:02d}"] = type(one)(**{**vars(one), "images": x, "labels": y})

    def between(outcome: Any) -> None:
        # Both networks hold the same tensors in the same order.
        turn(dict(zip(names, (outcome.state.tensors[f"model/{n}"] for n in task.network().state_dict()), strict=True)))

    work = Work(optimizer="sgd", lr=LR, batch=BATCH)
    federated(FedAvg(), task, place, admitted, TURNS + 2, between, work)


def pfl(turn: Turn, place: Path) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Trained(Net):
        def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:  # noqa: A002 - its word
            return functional.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Weighted]:  # noqa: A002
            return {"loss": Weighted(float(functional.cross_entropy(self(x), y, reduction="sum")), len(y))}

    class Between(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Metrics:
            turn(model.pytorch_model.state_dict())
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            turn(model.pytorch_model.state_dict())
            return False, Metrics()

    torch.manual_seed(0)
    net = Trained()
    users = {f"s{site:02d}": patients(site) for site in range(SITES)}
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset(users[user], user_id=user), get_user_sampler("minimize_reuse", list(users))
    )
    central = torch.optim.SGD(net.parameters(), lr=1.0)  # the mean of the sites' changes, as it is
    model = PyTorchModel(net, local_optimizer_create=torch.optim.SGD, central_optimizer=central)
    rounds = NNAlgorithmParams(
        central_num_iterations=TURNS + 2, evaluation_frequency=10**6, train_cohort_size=SITES, val_cohort_size=0
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH)
    FederatedAveraging().run(
        rounds,
        SimulatedBackend(training_data=data, val_data=data),
        model,
        local,
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Between()],
    )


def flower(turn: Turn, place: Path) -> None:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    for site in range(SITES):
        torch.save(patients(site), place / f"{site}.pt")
    client, server, folder = ClientApp(), ServerApp(), str(place)

    @client.train()
    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        x, y = torch.load(f"{folder}/{context.node_config['partition-id']}.pt")
        net = Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        trained(net, x, y)
        said = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(said), reply_to=message)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        torch.manual_seed(0)
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)

        def between(number: int, arrays: Any) -> None:
            turn(arrays.to_torch_state_dict())

        strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=TURNS + 2, evaluate_fn=between)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server, client, num_supernodes=SITES, backend_config=resources)


WAYS: Mapping[str, Callable[[Turn, Path], None]] = {"ours": ours, "pfl": pfl, "flower": flower}


def child(way: str) -> None:
    """One framework, which talks to the parent by its standard output; what the framework prints goes to the other."""
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as place:
        WAYS[way](Waiting(out), Path(place))


def started(way: str, python: str, log: Path) -> subprocess.Popen[str] | None:
    """The framework's process, ready for its first round; None, and why, where it cannot run."""
    safe = [] if way == "ours" else ["-P"]  # its own packages, not the files of this folder
    command = [python, *safe, os.path.abspath(__file__), "--child", way]
    with log.open("w") as errors:
        process = subprocess.Popen(  # noqa: S603 - this file, by an interpreter that the caller names
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    first = process.stdout.readline() if process.stdout else ""
    if first:
        return process
    last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
    print(f"{way}: skipped: {last}", flush=True)
    return None


def compared(pythons: Mapping[str, str], place: Path) -> None:
    found: dict[str, subprocess.Popen[str]] = {}
    for way, python in pythons.items():
        if not Path(python).exists():
            print(f"{way}: skipped: no {python}; how to make it stands at the top of this file")
        elif (process := started(way, python, place / f"{way}.log")) is not None:
            found[way] = process
    told: dict[str, list[dict[str, Any]]] = {way: [] for way in found}
    for _ in range(TURNS + 1):
        for way, process in found.items():
            if process.stdin is None or process.stdout is None:
                continue
            process.stdin.write("go\n")
            process.stdin.flush()
            told[way].append(json.loads(process.stdout.readline()))
    for process in found.values():
        if process.stdin is not None:
            process.stdin.close()
        process.wait(timeout=60)
    table({way: said[1:] for way, said in told.items()})


def table(told: Mapping[str, list[dict[str, Any]]]) -> None:
    def added(way: str, whose: str, what: int) -> float:
        return sum(said[whose][what] for said in told[way]) / len(told[way])

    print("| | torch | s a round | over bare | CPU s a round | over bare | ours / it, s | CPU | loss |")
    print("|---|---|---|---|---|---|---|---|---|")
    for way, said in told.items():
        wall, spent = added(way, "its", 0), added(way, "its", 1)
        print(
            f"| {way} | {said[-1]['torch']} | {wall:.2f} | {wall / added(way, 'bare', 0):.2f} | {spent:.2f} | "
            f"{spent / added(way, 'bare', 1):.2f} | {added('ours', 'its', 0) / wall:.2f} | "
            f"{added('ours', 'its', 1) / spent:.2f} | {said[-1]['loss']:.3f} |"
        )


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--pfl", default="", help="Python of the environment with pfl")
    parser.add_argument("--flower", default="", help="Python of the environment with flwr")
    parser.add_argument("--child", choices=tuple(WAYS), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compared({"ours": sys.executable, "pfl": chosen.pfl, "flower": chosen.flower}, Path(folder))
