"""Checks of `track`: whether the tools that copy the figures are installed, reported before a run and not at its
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `track`."""
    if run.track is None:
        return
    for tool in ("tensorboard", "mlflow"):
        if getattr(run.track, tool) is not None and find_spec(tool) is None:
            text = f"{tool} is not installed on the coordinator's machine; pip install consilium[{tool}], or remove it"
            yield Problem(("track", tool), text)
