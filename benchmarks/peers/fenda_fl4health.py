"""FENDA in FL4Health, which has it: a client that names its data, model, optimizer and loss; a server; processes."""

import sys
from functools import partial
from multiprocessing import Process
from pathlib import Path

import flwr
import torch
from fl4health.client_managers.base_sampling_manager import SimpleClientManager
from fl4health.clients.fenda_client import FendaClient
from fl4health.metrics import Accuracy
from fl4health.model_bases.fenda_base import FendaModel
from fl4health.model_bases.parallel_split_models import ParallelFeatureJoinMode, ParallelSplitHeadModule
from fl4health.servers.base_server import FlServer
from fl4health.strategies.basic_fedavg import BasicFedAvg
from task import BATCH, LR, ROUNDS, SITES, extractor, head, images, told
from torch.utils.data import DataLoader, TensorDataset

ADDRESS = "127.0.0.1:18471"


class Head(ParallelSplitHeadModule):
    def __init__(self):
        super().__init__(ParallelFeatureJoinMode.CONCATENATE)
        self.last = head()

    def parallel_output_join(self, local_tensor, global_tensor):
        return torch.cat([local_tensor, global_tensor], dim=1)

    def head_forward(self, input_tensor):
        return self.last(input_tensor)


class Hospital(FendaClient):
    def __init__(self, site, folder):
        super().__init__(Path(folder), [Accuracy("accuracy")], torch.device("cpu"), client_name=site)
        self.site = site

    def get_data_loaders(self, config):
        train, test = (TensorDataset(*images(self.site, split)) for split in ("train", "test"))
        return DataLoader(train, batch_size=BATCH, shuffle=True), DataLoader(test, batch_size=BATCH)

    def get_model(self, config):
        return FendaModel(extractor(), extractor(), Head())

    def get_optimizer(self, config):
        return torch.optim.SGD(self.model.parameters(), lr=LR)

    def get_criterion(self, config):
        return torch.nn.CrossEntropyLoss()


def client(site, folder):
    torch.manual_seed(0)
    hospital = Hospital(site, folder)
    evaluate = hospital.evaluate

    def noted(parameters, config):
        loss, size, metrics = evaluate(parameters, config)
        right = next(value for name, value in metrics.items() if name.endswith("accuracy"))
        Path(folder, site).write_text(str(float(right)))
        return loss, size, metrics

    hospital.evaluate = noted
    flwr.client.start_client(server_address=ADDRESS, client=hospital.to_client())
    hospital.shutdown()


def config(number):
    return {"current_server_round": number, "local_epochs": 1, "batch_size": BATCH}


def server(folder):
    strategy = BasicFedAvg(
        min_fit_clients=len(SITES), min_evaluate_clients=len(SITES), min_available_clients=len(SITES),
        on_fit_config_fn=config, on_evaluate_config_fn=config,
    )  # fmt: skip
    conduct = FlServer(SimpleClientManager(), config(0), strategy, on_init_parameters_config_fn=config)
    flwr.server.start_server(server_address=ADDRESS, server=conduct, config=flwr.server.ServerConfig(num_rounds=ROUNDS))


if __name__ == "__main__":
    folder = sys.argv[1]
    processes = [Process(target=partial(server, folder)), *(Process(target=client, args=(s, folder)) for s in SITES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    told("FL4Health", {site: float(Path(folder, site).read_text()) for site in SITES})
