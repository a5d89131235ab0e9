# `make demo` and `make test` need Python >= 3.11 and nothing else: they make .venv and fill it.
# Another interpreter: `make clean && make PYTHON=python3.12 test`.
# The newest that runs and can make an environment: JAX 0.12 needs 3.12, and is quicker on a CPU.
PYTHON ?= $(or $(shell for python in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done),python3)
# As many as there are cores, at most four: each holds up to 2 GB.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n : 4)))
PIP_ARGS ?=
# Where bytecode is not kept, as many container images ask, each of hundreds of processes compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=
# How many faults `make mutants` draws, or `make kills` kills, in place of what each does by itself, and with which seed.
COUNT ?=
SEED ?= 0

VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all snapshots hunt kills mutants properties lint types parity notebooks docs clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 15

demo: $(VENV)/.train ## train four methods on digits and write a report into runs/demo (a minute, once installed)
	$(BIN)/jdml demo

PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test: $(VENV)/.dev ## the tests, the documentation's code and the docstrings' examples
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.dev ## the others: long runs, eight devices, two processes, studies, benchmarks, other libraries
	$(PYTEST) -m slow

test-all: $(VENV)/.dev ## both, with the thirty slowest
	$(PYTEST) --durations=30 --durations-min=0

snapshots: $(VENV)/.dev ## rewrite the stored help and opening lines of commands; review the difference
	$(BIN)/python -m pytest -q tests/cli --snapshot-update

CASES ?= 100000
hunt: $(VENV)/.dev ## CASES generated batches, folders and command lines (hours), and earlier failures
	JDML_HUNT=$(CASES) $(PYTEST) tests/hunt

kills: $(VENV)/.dev ## kill COUNT runs at random moments, resume them, compare bit for bit (needs a C compiler; 40 minutes)
	$(BIN)/python tools/kills/kill.py --count $(or $(COUNT),100) --seed $(SEED) --record build/kills.jsonl

properties: $(VENV)/.dev ## which properties are tested of which loss and miner
	@$(BIN)/python -m pytest -q --collect-only tests/losses tests/mining tests/optim tests/flows | sed -n 's/.*::test_propert[a-z]*\[\(.*\)\]$$/\1/p; s/.*::test_property_\(.*\)__\(with.*\)$$/\1-\2/p'

mutants: $(VENV)/.dev ## insert COUNT faults into the library and see which test fails (hours)
	$(BIN)/python tools/mutants/mutate.py --map
	$(BIN)/python tools/mutants/mutate.py --count $(or $(COUNT),430) --seed $(SEED)

lint: $(VENV)/.dev ## ruff's rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy
	$(BIN)/mypy

parity: $(VENV)/.parity ## all tests, with PyTorch's libraries and faiss to compare with
	$(MAKE) --no-print-directory test-all

notebooks: $(VENV)/.dev ## run every notebook on small digits and compare its output
	$(BIN)/python -m pytest -q -n $(WORKERS) -W default notebooks

docs: $(VENV)/.docs ## the site, strictly and offline, into build/docs/html (six minutes of two cores; one minute once cached)
	$(BIN)/python docs/maker

clean: ## remove the environment and the tools' caches (runs stay)
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find jdml tests experiments -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# A stamp per extra: what pyproject.toml asks for is installed again whenever that file changes.
$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("jdml needs Python >= 3.11, this is %s; try: make PYTHON=python3.12" % sys.version.split()[0])'
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --upgrade pip
	@touch $@

$(VENV)/.train: pyproject.toml | $(VENV)/.pip
	@echo "installing jdml[train] into $(VENV) (once, a minute or two)"
	@$(INSTALL) --editable '.[train]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.pip
	@echo "installing jdml[dev] into $(VENV) (once, a minute or two)"
	@$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.train $@

$(VENV)/.parity: pyproject.toml | $(VENV)/.dev
	@echo "installing jdml[parity] into $(VENV) (once; PyTorch is large)"
	@$(INSTALL) --editable '.[parity]'
	@$(INSTALL) --no-deps 'jax2onnx>=0.17.1'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.dev
	@echo "installing jdml[docs] into $(VENV) (once)"
	@$(INSTALL) --editable '.[docs]'
	@touch $@

# Beside the environment, whose packages it sees: where these are installed, JAX looks for devices.
$(VENV)/.compilers: pyproject.toml | $(VENV)/.dev
	@echo "installing the compilers for GPU and TPU into $(VENV)/compilers (once)"
	@$(BIN)/python -m venv $(VENV)/compilers
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(VENV)/compilers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/environment.pth"
	@$(VENV)/compilers/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) --editable '.[compilers]'
	@touch $@
