# `make tune` and `make test` work from a fresh clone; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 9
DEVICE ?= auto
# What is installed with the package: `make tune` takes PyTorch alone; EXTRAS replaces either list.
TO_TUNE := torch
TO_WORK := torch,mindspore,dashboard,dev

.PHONY: help setup tune test test-slow test-soak test-all lint bench device reference docs docs-links clean

help:
	@echo "make tune   set up PyTorch alone, then tune a ViT on this machine's CPU (about ten minutes)"
	@echo "make test   set up, then lint, type-check and run the fast tests"
	@echo "make test-all  the same and the slow tests"
	@echo "make bench  set up, then run all benchmarks (about three hours; the machine must be idle)"
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
	$(BIN)/python cli.py tune --model vit --device cpu

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile --max-worker-restart 0 -m "not slow and not soak"

test-slow: setup
	$(BIN)/pytest --numprocesses 2 --dist loadfile --max-worker-restart 0 -m "slow and not soak"

test-soak: setup
	$(BIN)/pytest -m soak

test-all: test test-slow

bench: setup
	$(BIN)/python -m benchmarks all

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
