"""The default run's patients are the ones that a rule chose which looks at no score."""

from __future__ import annotations

import yaml

from benchmarks.tables import shipped_patients
from pipelines.loader.files import CONFIGS


def test_the_default_runs_patients_are_the_draw_that_is_nearest_to_what_is_expected() -> None:
    settings = yaml.safe_load((CONFIGS / "prostate_adc.yaml").read_text(encoding="utf-8"))
    assert settings["split"] == shipped_patients.FRACTIONS and settings["seed"] == 0
    for site in shipped_patients.DRAWS:
        source = settings["sites"][site]["source"]
        assert (source["patients"], source["seed"]) == (shipped_patients.PATIENTS, shipped_patients.select_draw(site))
