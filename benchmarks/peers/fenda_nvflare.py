"""FENDA in NVIDIA FLARE: a recipe for FedAvg of the shared extractor; fenda_nvflare_client.py is the client."""

import sys
from pathlib import Path

from fenda_nvflare_client import Shared
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from task import ROUNDS, SITES, told

folder = sys.argv[1]
recipe = FedAvgRecipe(
    name="fenda", model=Shared(), min_clients=len(SITES), num_rounds=ROUNDS + 1,
    train_script=str(Path(__file__).with_name("fenda_nvflare_client.py")), train_args=folder,
)  # fmt: skip
recipe.execute(SimEnv(num_clients=len(SITES), workspace_root=f"{folder}/workspace"))
told("NVIDIA FLARE", {site: float(Path(folder, site).read_text()) for site in SITES})
