"""The floor that no patient shaped: every hospital diagnoses with the common start."""

from __future__ import annotations

import reference
from consilium.testing import testbed
from federation.as_begun import AsBegun
from federation.rehearsal import initial_parameters, rehearse_events
from privacy.dp.events import compose_events
from privacy.dp.protection import Protection


def test_the_model_is_the_common_start_at_every_hospital_and_costs_nothing():
    task = testbed.make_task()
    outcome, crew = reference.trained(AsBegun())
    start = initial_parameters(AsBegun(), task, seed=1)
    assert list(outcome.totals) == ["1"] and all(
        testbed.are_equal(testbed.newest_model(one), start) for one in crew.values()
    )
    seen = rehearse_events(AsBegun(), task, reference.BRIEF, start, Protection(validation_noise=1.0))
    assert seen.training == seen.introduction == compose_events([])
