# make demo and make test are all a fresh clone needs: each sets up what is missing first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# A file's tests stay in one process, as they share what was trained; tests/conftest.py puts the longest files first.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test quick lint bench clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

setup: $(STAMP) ## make the virtual environment .venv; does nothing when it is up to date

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP) ## train a digit classifier dense, with l1 and with the Sparsifier, and compare them in demo/report.html
	$(BIN)/rewa sweep digits --methods dense,l1,sparsifier --rates 0.1,0.2,0.4 --out demo/runs
	$(BIN)/rewa report demo/runs -o demo/report.html

test: $(STAMP) ## run every test; eight minutes on two cores
	$(PYTEST)

quick: $(STAMP) ## run the tests that start no process, train nothing and take no second; 90 s on two cores
	$(PYTEST) -m "not slow" --durations 10 --durations-min 1

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(STAMP) ## time an optimizer step against torch's own, and sparse models against dense ones
	$(BIN)/python benchmarks/optimizer_step.py
	$(BIN)/python benchmarks/deploy.py

clean: ## remove the virtual environment and what the commands wrote
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
