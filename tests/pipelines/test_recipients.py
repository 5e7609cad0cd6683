"""A hospital that does not let its replies go on refuses with the settings and with the survey, before anybody pays."""

from __future__ import annotations

import itertools

import pytest
import yaml

from pipelines.coordinator.permissions import Permissions, check_permitted, find_refused_requests, permissions_in
from pipelines.loader.document import ConfigError, parse_document, render
from pipelines.remote.preflight import list_promises
from pipelines.settings.load import check_config
from pipelines.settings.recipients import list_needed_recipients
from privacy.release.policy import COORDINATOR, OUTSIDE, RECIPIENTS, SITES, Policy
from route_settings import settings


def load(said):
    return check_config(parse_document(yaml.safe_dump(said), environment={}), files=False)


def handing_on(*recipients: str):
    """A run that hands models to a hospital outside, and with `sites` replies to other hospitals."""
    said = settings()
    for name in ("north", "south"):
        said["sites"][name]["policy"] = {"recipients": [COORDINATOR, *recipients]}
    if SITES in recipients:
        said["train"]["methods"]["apple"] = {"name": "apple"}
    return said


NEEDED = ((OUTSIDE,), (OUTSIDE, SITES))


@pytest.mark.parametrize("needed", NEEDED, ids=" ".join)
def test_what_settings_and_survey_say_is_what_the_run_needs(needed):
    config = load(handing_on(*needed))
    assert {recipient for recipient, _ in list_needed_recipients(config, "north")} == set(needed)
    permitted = permissions_in(config)
    check_permitted(config, permitted)
    for number in range(len(RECIPIENTS)):
        for names in itertools.combinations([name for name in RECIPIENTS if name != COORDINATOR], number):
            policy: Permissions = permitted["north"]._replace(recipients=(COORDINATOR, *names))
            missing = [name for name in needed if name not in names]
            sentences = find_refused_requests(config, {**permitted, "north": policy})
            assert len(sentences) == len(missing)
            assert all(f"[coordinator, {name}]" in " ".join(sentences) for name in missing)
            assert all(sentence.startswith("north: ") for sentence in sentences)


@pytest.mark.parametrize("needed", NEEDED, ids=" ".join)
def test_the_settings_name_each_hospital_whose_policy_lacks_one(needed):
    for absent in needed:
        said = handing_on(*needed)
        said["sites"]["south"]["policy"] = {"recipients": [COORDINATOR, *(name for name in needed if name != absent)]}
        with pytest.raises(ConfigError) as error:
            load(said)
        text = render(error.value, "my.yaml")
        assert text.count("sites.south.policy.recipients: ") == 1
        assert f"[coordinator, {absent}]" in text


def test_the_hospital_outside_hands_nothing_on_and_an_older_hospital_that_does_not_say_is_asked():
    config = load(handing_on(OUTSIDE))
    permitted = permissions_in(config)
    west = permitted["west"]._replace(recipients=(COORDINATOR,))
    north = permitted["north"]._replace(recipients=None)
    assert find_refused_requests(config, {"west": west, "north": north}) == []


@pytest.mark.parametrize("recipient", RECIPIENTS)
def test_a_hospital_that_looks_itself_over_is_told_of_every_recipient(recipient):
    recipients = (COORDINATOR,) if recipient == COORDINATOR else (COORDINATOR, recipient)
    assert list_promises(Policy(recipients=recipients))[0].count(",") == len(recipients) - 1
