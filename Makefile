# `make tune` and `make test` work from a fresh clone; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 9
MODEL ?= resnet18
BUDGET ?= 5m
DEVICE ?= auto
TORCH ?= 2.6.0 2.15.0
# In the order of the folders: by number of tests, the few that take a minute each would come last.
IN_PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# What is installed with the package: `make tune` takes PyTorch alone; EXTRAS replaces either list.
TO_TUNE := torch
TO_WORK := torch,mindspore,dashboard,dev

.PHONY: help setup tune test test-slow test-soak test-all test-versions lint bench zoo device reference docs docs-links clean

help:
	@echo "make tune   set up PyTorch alone, then tune a ResNet-18 on this machine's CPU (at most five minutes; MODEL=vit BUDGET=10m)"
	@echo "make test   set up, then lint, type-check and run the fast tests"
	@echo "make test-all  the same and the slow tests"
	@echo "make test-versions  the fast tests of the torch backend under each of TORCH='2.6.0 2.15.0', in a venv of its own"
	@echo "make bench  set up, then run all benchmarks (about seven hours; the machine must be idle)"
	@echo "make zoo    set up, then install what the models of benchmarks/zoo.py are from, in build/zoo"
	@echo "make device  set up, then try what a GPU or NPU can do, for MINUTES=9; run it again to go on (DEVICE=auto FLAGS=)"
	@echo "make docs   set up Sphinx, then build the documentation as build/docs/index.html; docs-links checks links to other sites"
	@echo "make reference  set up, then write the generated parts of docs/ anew"
	@echo "make clean  remove the environment and caches; studies stay"

setup: $(VENV)/ready

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

$(VENV)/ready: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[$(or $(EXTRAS),$(TO_WORK))]'
	@touch $@

$(VENV)/ready-to-tune: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[$(or $(EXTRAS),$(TO_TUNE))]'
	@touch $@

$(VENV)/ready-for-docs: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[docs]'
	@touch $@

tune: $(VENV)/ready-to-tune
	$(BIN)/python cli.py tune --model $(MODEL) --device cpu --budget $(BUDGET)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The bytecode of the package is written first: hundreds of children import it, and the environment may keep them from it.
test: lint
	$(BIN)/python -m compileall -q autotune tests/fake_backend
	$(BIN)/pytest $(IN_PARALLEL) -m "not slow and not soak"

test-slow: setup
	$(BIN)/pytest $(IN_PARALLEL) -m "slow and not soak"

test-soak: setup
	$(BIN)/pytest -m soak

test-all: test test-slow

# Each release brings the packages that it pins; the others are the known-good ones. torch 2.6 starts processes to compile
# in when inductor is imported, and the tests allow none that outlives one of them.
test-versions:
	@set -e; for release in $(TORCH); do \
	  home=build/torch-$$release; $(PYTHON) -m venv $$home; \
	  grep -viE '^(torch|triton|sympy|setuptools|cuda-|nvidia-)' constraints.txt > $$home/constraints.txt; \
	  $$home/bin/pip install --quiet --disable-pip-version-check --constraint $$home/constraints.txt \
	    --editable . "torch==$$release" pytest jsonschema 'numpy<2'; \
	  TORCHINDUCTOR_COMPILE_THREADS=1 $$home/bin/python -m pytest -m "not slow and not soak" tests/backends/test_torch_*.py; \
	  AUTOTUNE_OTHER_ENVIRONMENT=$$home $(BIN)/python -m pytest -m slow tests/plugins/test_upgrade.py; \
	done

bench: setup
	$(BIN)/python -m benchmarks all

# Beside the environment, not in it: each folder is on the path of the processes that need it.
zoo: setup
	@set -e; for name in torch timm mindspore; do \
	  rm -rf build/zoo/$$name; \
	  $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/zoo/$$name \
	    --requirement benchmarks/models/zoo/$$name.txt; \
	done

device: setup
	$(BIN)/python -m benchmarks device --minutes $(MINUTES) --device $(DEVICE) $(FLAGS)

reference: setup
	$(BIN)/python docs/site/reference.py

SPHINX = $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir build/doctrees

docs: $(VENV)/ready-for-docs
	$(SPHINX) . build/docs

docs-links: $(VENV)/ready-for-docs
	$(SPHINX) --builder linkcheck . build/links

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
