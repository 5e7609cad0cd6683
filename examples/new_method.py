"""A method of one's own in one file: FedAvg with momentum at the coordinator (Hsu, Qi, Brown, arXiv 1909.06335).

python examples/new_method.py
"""

from dataclasses import dataclass
from typing import Literal

from sklearn.datasets import load_breast_cancer

from consilium import Examples, Work, train
from federation.fedavg import FedAvg, merged
from federation.parameters import prefixed, section
from privacy.message import Message


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """v <- beta v + (mean - x), x <- x + v."""

    name: Literal["fedavgm"] = "fedavgm"
    beta: float = 0.7

    def send(self, state, site, call):
        return Message(prefixed("model", section(state.tensors, "model")))

    def merge(self, state, replies):
        x, v = section(state.tensors, "model"), section(state.tensors, "velocity")
        step = {name: mean - x[name] for name, mean in merged(replies, self.weights).items()}
        v = {name: self.beta * v[name] + d if v else d for name, d in step.items()}
        return Message({**prefixed("model", {n: x[n] + v[n] for n in x}), **prefixed("velocity", v)})


data = load_breast_cancer()
x = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
hospitals = {f"hospital-{k}": Examples(x[k::3], 1 - data.target[k::3], patient="each") for k in range(3)}
methods = [FedAvg(), FedAvgM()]
work = Work(lr=0.02, optimizer="sgd", batch=16)
print(train(hospitals, model="mlp", method=methods, rounds=5, work=work, folder="runs/momentum"))
