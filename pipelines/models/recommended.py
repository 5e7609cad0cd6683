"""Which of its finished models a hospital was recommended, in `recommended.json` of its folder."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.models.file import READY, digest_of
from privacy.message import Json

RECOMMENDED = "recommended.json"
FORMAT = 1


def recommended_file(folder: Path) -> Path:
    """The file of the model that a run recommended to the hospital with this folder.

    Raises:
        ValueError: there is no recommendation, or the model is not the one that was recommended.
        OSError: the disk.
    """
    home = folder.parent if folder.name == READY else folder
    if not home.is_dir():
        raise ValueError(
            f"--recommended takes a hospital's folder in place of a model, found {str(folder)!r}; give "
            "runs/<name>/sites/<site>"
        )
    if not (home / RECOMMENDED).is_file():
        raise ValueError(
            f"{home} has no {RECOMMENDED}: no run recommended a model to this hospital. A recommendation needs labels, "
            "validation patients, a model of its own (local, local_ridge or local_svm) and another to compare with; "
            "finish such a run, or give a file of its ready/ folder without --recommended"
        )
    try:
        said: dict[str, Json] = json.loads((home / RECOMMENDED).read_bytes())
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']}, and {FORMAT} is read here")
        path, digest = home / READY / f"{said['method']}.safetensors", said["digest"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{home / RECOMMENDED} is damaged ({error}); make the run's report again") from error
    if not path.is_file() or digest_of(path.read_bytes()) != digest:
        raise ValueError(
            f"{path} is gone, or not the model that was recommended; make the run's report again, or give a model "
            "without --recommended"
        )
    return path


def to_bytes(said: dict[str, Json], model: Path) -> bytes:
    """The content of `recommended.json`, of a recommendation and the file of its model. Raises: OSError."""
    return json.dumps({"format": FORMAT, **said, "digest": digest_of(model.read_bytes())}, indent=1).encode()
