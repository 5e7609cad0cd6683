"""The text of a configuration for nnU-Net's folders: a small run on masks, which `consilium plan` makes a real one."""

TEMPLATE = """\
# Written by python -m pipelines.init from what lies in {{ folder | scalar }}, a folder of nnU-Net's.
#   python -m pipelines.plan {{ file }} -o planned.yaml{{ " --ct" if ct }}     plans images, network and training
#                                                          (with --small for a processor alone)
#   python -m pipelines.run planned.yaml --check           looks at settings, files and methods, and computes nothing
#   python -m pipelines.run planned.yaml                   runs; results lie in ./runs/{{ name }}
{% for doubt in found.doubts -%}
# Doubt: {{ doubt }}.
{% endfor -%}
name: {{ name }}
privacy: none        # no formal guarantee: every release is non-private, and the ledger says so
pooling: refused     # images of several sites are never brought together
seed: 0

task: {{ found.task | flow }}   # of dataset.json, by their labels

{% if volumes %}
sites:   # each case is a patient; where a patient has several, let the group of `patient` hold what these share
{% else %}
sites:   # each picture is a patient; where a patient has several, write a table of pictures and patients
{% endif %}
{% for site in found.sites %}
  {{ site.name | scalar }}:        # {{ counts(site) }}
    source: {{ site.source | flow }}
{% endfor %}

# The next ones are a first look, small and coarse. A plan writes others.
{% if volumes %}
images: {kind: volumes, values: standardized, centre: image, size: 48, spacing_mm: 3.0, depth: 16, depth_mm: 4.0}
{% else %}
images: {kind: pictures, size: 96, channels: {{ found.channels }}, fit: squash}
{% endif %}

split: {train: {{ split[0] }}, validation: {{ split[1] }}, test: {{ split[2] }}}     # shares of each site's patients

model: {name: unet, width: 8, levels: 3, norm: group}

train:
  schedule: {rounds: 20}
  work: {optimizer: adam, lr: 1e-3, batch: 2, epochs: null, steps: 25}
  methods:
    local: {name: local}          # a network at each hospital
{% if found.sites | length > 1 %}
    fedavg: {name: fedavg}        # one network for all
{% endif %}

evaluate:
  checkpoint: {{ "average" if split[1] == "0" else "global" }}{{ checkpoint_note }}
  copies: 200          # bootstrap copies over patients, for the intervals

audit: {membership: false}
"""
