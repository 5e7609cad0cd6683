"""Write a configuration with comments from the detected data. Missing settings are marked lines to be filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping

from jinja2 import Environment, StrictUndefined

from pipelines.discovery.found import Discovery, Group, Site
from pipelines.discovery.nnunet import is_ct
from pipelines.discovery.nnunet_draft import TEMPLATE as NNUNET_TEMPLATE
from pipelines.loader.names import FILL_IN

WITH_FEATURES: Mapping[str, tuple[Group, Group]] = {
    "pictures": (
        {"name": "moments", "others_gram": 1.0, "others_classes": 0.3, "ridge": 0.1},
        {"name": "features", "of": {"name": "colour"}, "public": "skin_lesion", "components": 60, "fourier": 300},
    ),
    "slices": (
        {"name": "moments", "others_gram": 1.0, "others_classes": 0.5},
        {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "components": 48, "softness": 0.1},
    ),
}
"""Moments and what they are of, by kind of image, with the settings of docs/results/recommendation.md (pictures:
moments, Fourier) and docs/results/one-message-phantom.md (radiomics, together)."""
SMALL_SITE = 12  # patients of the smallest site: with fewer, there is no validation split
TEMPLATE = """\
# Written by python -m pipelines.init from what lies in {{ folder | scalar }}. Read it once; every line may be changed.
#   python -m pipelines.run {{ file }} --check      looks at settings, files and methods, and computes nothing
#   python -m pipelines.run {{ file }}              runs; results lie in ./runs/{{ name }}
{% for doubt in found.doubts -%}
# Doubt: {{ doubt }}.
{% endfor -%}
name: {{ name }}
privacy: none        # no formal guarantee: every release is non-private, and the ledger says so
pooling: refused     # images of several sites are never brought together
seed: 0

sites:
{% for site in found.sites %}
  {{ site.name | scalar }}:        # {{ counts(site) }}
    source: {{ site.source | flow }}{{ source_note(site) }}
{% for sentence in site.missing %}
    # {{ mark }}: {{ sentence }}.
{% endfor %}
{% if site.labels %}
    labels: {{ site.labels | flow }}
{% elif volumes %}
    labels: {{ mark }}        # put one of these two in its place, with your folder or file and its columns:
    #   labels: {kind: table, file: /where/labels.csv, patient: patient, label: label}   # of 0 and 1
    #   labels: {kind: mask, folder: /where/masks, pattern: "{patient}.nii.gz"}          # above 0 = positive
    # several columns of findings in the table, each 0, 1 or empty: task: {kind: findings, findings: [a, b]}; or
    # a number in the table instead: task: {kind: regression, what: volume, unit: mL, range: [0, 200]}, and no method,
    # network or balance that needs classes; --check names them
{% endif %}
{% for other in site.alternatives %}
    # could be taken instead:
    #   labels: {{ other | flow }}
{% endfor %}
{% if site.gland %}
    gland: {{ site.gland | flow }}
{% endif %}
{% endfor %}

images: {{ images | flow }}{{ images_note }}
{% if found.task %}

task: {{ found.task | flow }}   # {{ task_note }}
{% endif %}

split: {train: {{ split[0] }}, validation: {{ split[1] }}, test: {{ split[2] }}}     # shares of each site's patients

{% if several %}
model: {name: cnn}   # of the networks: a small one, with an output for each finding
{% else %}
model: {name: cam}   # of the networks: a small classifier with class activation maps
{% endif %}

train:
  schedule: {rounds: 20}
  work: {optimizer: adam, lr: 1e-3, batch: 24, epochs: 2, augment: affine{{ "" if several else ", balance: true" }}}
  methods:          # heads on fixed features first: no network of ours was shown to beat them with few patients
    local_svm: {name: local_svm}       # floors: each hospital alone, on fixed features of its images
    local_ridge: {name: local_ridge}   # the same, linear
{% if found.sites | length > 1 and not several %}
    moments: {{ moments | flow }}   # one message, and a head for each hospital
{% endif %}
    local: {name: local}          # a network at each hospital
{% if found.sites | length > 1 %}
    fedavg: {name: fedavg}        # one network for all
    fedper: {name: fedper}        # a shared body, and a head for each hospital
{% endif %}
{% if found.sites | length > 1 and not several %}
  method_model:
    moments: {{ features | flow }}
{% endif %}
{% if not several %}
  # with privacy: {epsilon: ...}: `moments` alone and together, and `dp_head`, as in skin_lesion_private.yaml
{% endif %}

evaluate:
  checkpoint: {{ "average" if split[1] == "0" else "global" }}{{ checkpoint_note }}
  copies: 200          # bootstrap copies over patients, for the intervals
  reference: null      # gains are over {{ reference_note }}; or name a method
"""


GRADES_NOTE = "add ordered: true, if these are grades, the lowest first"
FINDINGS_NOTE = "each its own column of 0 and 1; an empty cell is unknown"
CHOSEN, AVERAGED = "   # the round with the lowest validation loss", "  # of all rounds: nobody validates one"


def draft_yaml(survey: Discovery, *, folder: str, file: str, name: str) -> str:
    """The YAML text. file: its name in the commands of its comments. name: of the run."""
    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - YAML, no page
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"flow": format_flow_group, "scalar": format_scalar}
    smallest = min((site.patients for site in survey.sites), default=0)
    split = ("0.5", "0.15", "0.35") if smallest >= SMALL_SITE else ("0.5", "0", "0.5")
    gland = all(site.gland for site in survey.sites)
    volumes = survey.sort != "pictures"
    several = survey.task is not None and survey.task.get("kind") == "findings"
    note = "        # only slices that show the gland" if volumes and gland else ""
    validated, images = split[1] != "0", images_of(survey)
    moments, features = WITH_FEATURES[str(images["kind"])]
    template = NNUNET_TEMPLATE if survey.of_masks else TEMPLATE
    return environment.from_string(template).render(
        ct=is_ct(survey),
        found=survey,
        folder=folder,
        file=file,
        name=name,
        mark=FILL_IN,
        split=split,
        volumes=volumes,
        several=several,
        task_note=FINDINGS_NOTE if several else GRADES_NOTE,
        images=images,
        moments=moments,
        features=features,
        images_note=note,
        reference_note="the best line at home, by validation patients" if validated else "local_svm, the first floor",
        checkpoint_note=CHOSEN if validated else AVERAGED,
        counts=describe_counts,
        source_note=_source_note,
    )


def images_of(survey: Discovery) -> Group:
    """The settings of examples for the detected images."""
    if survey.sort == "pictures":
        return {"kind": "pictures", "size": 64}
    slices = "gland" if survey.sites and all(site.gland for site in survey.sites) else "all"
    return {"kind": "slices", "spacing_mm": 1.5, "size": 48, "slices": slices}


def describe_counts(site: Site) -> str:
    """The counts of a site, for a comment."""
    scanners = ", ".join(f"{name} ({count:,})" for name, count in sorted(site.scanners.items()) if name)
    text = f"{site.patients:,} patients, {site.studies:,} studies, {site.images:,} images"
    return f"{text}; {scanners}" if scanners else text


def format_flow_group(group: Mapping[str, object]) -> str:
    """A group of settings on one line of YAML."""
    return "{" + ", ".join(f"{_format_key(key)}: {_format_value(value)}" for key, value in group.items()) + "}"


def _format_key(key: str) -> str:
    """A key as YAML: quoted where it would be read as a number."""
    return json.dumps(key) if key.lstrip("+-").isdecimal() else key


def format_scalar(text: str) -> str:
    """A text as a YAML scalar: unquoted if it is a plain word, else in quotes."""
    plain = text.isascii() and text.replace("_", "").isalpha() and text.lower() not in _NOT_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)


_NOT_TEXT = ("true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf")


def _format_value(value: object) -> str:
    """A value as YAML on one line."""
    if isinstance(value, Mapping):
        return format_flow_group(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    return format_scalar(value) if isinstance(value, str) else json.dumps(value)


def _source_note(site: Site) -> str:
    """A comment on a source that needs one."""
    return "     # ADC is fitted from the b-values" if site.source.get("derive") == "adc" else ""
