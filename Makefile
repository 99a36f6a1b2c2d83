# Every task of the project. Settings of the tools are in pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types imports unit format crds constraints e2e cluster-up cluster-down clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with every extra and the test model (does nothing when it is up to date)
	@PYTHON=$(PYTHON) hack/setup.sh

demo: setup ## From nothing to an answer: cluster, images, chart, InferenceService, chat
	@$(BIN)/python -m hack.demo

test: check e2e ## All tests: `check`, then end to end on the embedded cluster

check: setup lint types imports unit ## Lint, types, import contracts and unit tests; needs no cluster

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest -m "not e2e" -n 2 --dist loadfile

e2e: setup
	@$(BIN)/python -m hack.cluster up
	@$(BIN)/python -m hack.images all
	$(BIN)/pytest -m e2e tests

cluster-up: setup ## Start the embedded one-node Kubernetes (a developer's and CI tool)
	@$(BIN)/python -m hack.cluster up

cluster-down: setup ## Stop it; leaves no process, mount, interface or iptables rule behind
	@$(BIN)/python -m hack.cluster down

format: setup ## Format the code and sort the imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: setup ## Generate crds/*.yaml from the types
	$(BIN)/forebay crds --output crds
	$(BIN)/forebay crds --output helm/forebay/files/crds

constraints: setup ## Pin what is installed in .venv into constraints.txt
	hack/constraints.sh

clean: ## Stop the cluster and remove .venv, .cluster and caches inside the checkout
	@if [ -d .cluster ] && [ -x $(BIN)/python ]; then $(BIN)/python -m hack.cluster down --purge; fi
	rm -rf .venv .cluster .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
