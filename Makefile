# PACE: set up, run, test, lint. `make help` lists the targets.
#
#   TORCH=cpu   (default) the tested torch of constraints.txt
#   TORCH=cuda  the newest torch of the package index, for machines with a GPU
#   TORCH_PIP_ARGS  more arguments for the torch install, such as another index
#   PYTHON      the interpreter to build .venv with; 3.11 or newer
#   PYTEST_ARGS more arguments for pytest

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
TORCH ?= cpu
TORCH_PIP_ARGS ?=
PYTEST_ARGS ?=
MODEL := smollm2-135m
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	if $$p -c '$(IS_NEW_ENOUGH)' 2>/dev/null; then echo $$p; break; fi; done)

ifeq ($(filter $(TORCH),cpu cuda),)
$(error TORCH=$(TORCH) is unknown: use TORCH=cpu or TORCH=cuda)
endif

# Stamps live inside the environment, so that removing it removes them.
VENV_STAMP := $(VENV)/.pace-venv
TORCH_STAMP := $(VENV)/.pace-torch-$(TORCH)
RUN_STAMP := $(VENV)/.pace-run-$(TORCH)
DEV_STAMP := $(VENV)/.pace-dev-$(TORCH)
CONSTRAINTS := $(VENV)/.pace-constraints-$(TORCH).txt
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: $(RUN_STAMP) ## Set up, fetch the embedded model, start the stack and play a demo session
	$(BIN)/pace model add $(MODEL)
	$(BIN)/pace demo --serve --dashboard

.PHONY: test
test: $(DEV_STAMP) ## Set up and run every test that needs no GPU
	$(BIN)/pace model add $(MODEL)
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(PYTEST_ARGS)

.PHONY: lint
lint: $(DEV_STAMP) ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: setup
setup: $(DEV_STAMP) ## Set up for development: environment, dependencies, tools

.PHONY: clean
clean: ## Remove the environment and all caches of this checkout (not PACE_HOME)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(VENV_STAMP):
	@if [ -z "$(PYTHON)" ]; then \
	  echo "PACE needs Python 3.11 or newer and found none." \
	    "Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; fi
	@if ! $(PYTHON) -c '$(IS_NEW_ENOUGH)' 2>/dev/null; then \
	  found=$$($(PYTHON) --version 2>/dev/null || echo "not there"); \
	  echo "PACE needs Python 3.11 or newer; $(PYTHON) is $$found." \
	    "Name another one: make PYTHON=/path/to/python" >&2; exit 1; fi
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(CONSTRAINTS): constraints.txt | $(VENV_STAMP)
ifeq ($(TORCH),cuda)
	grep -v '^torch==' $< > $@
else
	cp $< $@
endif

# torch goes first and alone, so that no other requirement chooses its build.
$(TORCH_STAMP): $(CONSTRAINTS)
	rm -f $(VENV)/.pace-torch-* $(VENV)/.pace-run-* $(VENV)/.pace-dev-*
ifeq ($(TORCH),cuda)
	$(PIP) install --upgrade torch $(TORCH_PIP_ARGS)
else
	$(PIP) install "$$(grep '^torch==' $<)" $(TORCH_PIP_ARGS)
endif
	@touch $@

$(RUN_STAMP): $(TORCH_STAMP) pyproject.toml
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dashboard]'
	@touch $@

$(DEV_STAMP): $(TORCH_STAMP) pyproject.toml
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dashboard,test,lint,clients]'
	@touch $@ $(RUN_STAMP)
