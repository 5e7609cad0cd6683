"""FENDA in Flower, by hand: the client keeps its own extractor and the head in `context.state`."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import BATCH, LR, ROUNDS, SITES, extractor, head, images, told
from torch import nn
from torch.nn import functional


class Fenda(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.own, self.head = extractor(), extractor(), head()

    def forward(self, x):
        return self.head(torch.cat([self.own(x), self.shared(x)], dim=1))


app = ClientApp()


def opened(message, context):
    net = Fenda()
    if "mine" in context.state:
        net.load_state_dict(context.state["mine"].to_torch_state_dict())
    net.shared.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, SITES[context.node_config["partition-id"]]


@app.train()
def train(message: Message, context: Context):
    net, site = opened(message, context)
    (x, y), rule = images(site, "train"), torch.optim.SGD(net.parameters(), lr=LR)
    for part in torch.randperm(len(y)).split(BATCH):
        rule.zero_grad()
        functional.cross_entropy(net(x[part]), y[part]).backward()
        rule.step()
    context.state["mine"] = ArrayRecord(net.state_dict())
    reply = {"arrays": ArrayRecord(net.shared.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(reply), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context):
    net, site = opened(message, context)
    x, y = images(site, "test")
    right = float((net(x).argmax(dim=1) == y).float().mean())
    said = {"num-examples": len(y), "accuracy": right, "site": SITES.index(site)}
    return Message(content=RecordDict({"metrics": MetricRecord(said)}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context):
    found = {}

    def by_site(replies, weighted_by):
        for reply in replies:
            said = next(iter(reply.metric_records.values()))
            found[SITES[int(said["site"])]] = said["accuracy"]
        return MetricRecord({"accuracy": sum(found.values()) / len(found)})

    strategy = FedAvg(evaluate_metrics_aggr_fn=by_site, min_available_nodes=len(SITES))
    strategy.start(grid, ArrayRecord(extractor().state_dict()), num_rounds=ROUNDS)
    told("Flower", found)


run_simulation(server, app, num_supernodes=len(SITES), backend_config={"client_resources": {"num_cpus": 1}})
