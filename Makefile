# `make tune` and `make test` work from a fresh clone; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 9
BUDGET ?= 5m
DEVICE ?= auto
TORCH ?= 2.6.0 2.15.0
# In the order of the folders: by number of tests, the few that take a minute each would come last.
IN_PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
EXTRAS ?= torch,mindspore,dashboard,dev

.PHONY: help setup tune test test-slow test-soak test-all test-versions lint bench device clean

help:
	@echo "make tune   set up, then tune a ViT on this machine's CPU (at most five minutes; BUDGET=15m)"
	@echo "make test   set up, then lint, type-check and run the fast tests"
	@echo "make test-all  the same and the slow tests"
	@echo "make test-versions  the fast tests of the torch backend under each of TORCH='2.6.0 2.15.0', in a venv of its own"
	@echo "make bench  set up, then run all benchmarks (about three hours; the machine must be idle)"
	@echo "make device  set up, then try what a GPU or NPU can do, for MINUTES=9; run it again to go on (DEVICE=auto FLAGS=)"
	@echo "make clean  remove the environment and caches; studies stay"

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

tune: setup
	$(BIN)/python cli.py tune --model vit --device cpu --budget $(BUDGET)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest $(IN_PARALLEL) -m "not slow and not soak"

test-slow: setup
	$(BIN)/pytest $(IN_PARALLEL) -m "slow and not soak"

test-soak: setup
	$(BIN)/pytest -m soak

test-all: test test-slow

# Each release brings the packages that it pins; the others are the known-good ones.
test-versions:
	@set -e; for release in $(TORCH); do \
	  home=build/torch-$$release; $(PYTHON) -m venv $$home; \
	  grep -viE '^(torch|triton|sympy|setuptools|cuda-|nvidia-)' constraints.txt > $$home/constraints.txt; \
	  $$home/bin/pip install --quiet --disable-pip-version-check --constraint $$home/constraints.txt \
	    --editable . "torch==$$release" pytest jsonschema 'numpy<2'; \
	  $$home/bin/python -m pytest -m "torch and not slow and not soak" tests/backends; \
	done

bench: setup
	$(BIN)/python -m benchmarks all

device: setup
	$(BIN)/python -m benchmarks device --minutes $(MINUTES) --device $(DEVICE) $(FLAGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
