# `make` prints this file's targets. Everything is installed into .venv in this folder and nowhere else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := torch==2.13.0
TORCH_CPU := https://download.pytorch.org/whl/cpu
# Two test processes with one thread each: more threads on the same cores slow each other down.
WORKERS ?= 2
TESTS ?= tests
CODE := $(wildcard src tests benchmarks docs examples .ci/release/notes .ci/release/check-install)
# Modules are compiled once for all of the many processes that tests start.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := OMP_NUM_THREADS=1 POLARS_MAX_THREADS=2 $(BIN)/python -m pytest -q --dist worksteal
# What `make test-all` adds: types and shapes of each call, and pairs of settings where `make test` varies one.
THOROUGH := --jaxtyping-packages=fullrank,typechecker.checked

.PHONY: help install demo test test-all check coverage golden gpu bench docs notebooks readme

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## .venv with fullrank (editable) and everything its tests need; again only when a version changed

# torch first and by its exact version: asked for without it, pip fetches several GB of CUDA libraries.
# On a machine without a GPU the small CPU build is taken from PyTorch's own index where that can be reached, or from
# wherever pip is configured to look (find-links); 2.13.0+cpu counts as newer than 2.13.0, so pip prefers it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fullrank needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
	            "name another one: make install PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt --upgrade pip
	@index=""; \
	if ! nvidia-smi -L >/dev/null 2>&1; then \
	  if $(BIN)/python -c 'import urllib.request as r; r.urlopen("$(TORCH_CPU)/torch/", timeout=3)' 2>/dev/null; then \
	    index="--extra-index-url $(TORCH_CPU)"; \
	  else \
	    echo "no GPU here and $(TORCH_CPU) cannot be reached: torch comes from where pip is configured to look"; \
	  fi; \
	fi; \
	set -x; $(BIN)/python -m pip install -q -c constraints.txt $$index $(TORCH)
	$(BIN)/python -m pip install -q -c constraints.txt -e . --group dev
	@touch $@

demo: $(STAMP)  ## a generated marketplace end to end: prepare, train, compare four recommenders (under 5 minutes)
	$(BIN)/fullrank demo

test: $(STAMP)  ## the tests a person waits for, under 5 minutes (a part: TESTS=tests/metrics; MARK=slow, process, page, redis, cluster or attack)
ifdef MARK
	@$(if $(filter cluster,$(MARK)),$(MAKE) --no-print-directory cluster)
	$(PYTEST) -rs -n $(WORKERS) -m "$(MARK)" $(TESTS)
else
	FULLRANK_CHECKS=1 $(PYTEST) -n $(WORKERS) -m "not (slow or process or page or redis or cluster)" $(TESTS)
endif

test-all: $(STAMP)  ## every test there is, with types checked; installs pyspark (450 MB) and ray
	@$(MAKE) --no-print-directory cluster
	$(PYTEST) -rs -n $(WORKERS) $(THOROUGH) -m "not (slow or process or page or redis or cluster)" $(TESTS)
	FULLRANK_ATTACK_SHARE=0.25 $(PYTEST) -rs -n $(WORKERS) -m "slow or process or redis or page or cluster" $(TESTS)

.PHONY: cluster
cluster: $(STAMP)
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[ray]'
	@if command -v java >/dev/null; then $(BIN)/python -m pip install -q -c constraints.txt -e '.[spark]'; \
	 else echo "no Java on this machine: the tests of Spark are skipped"; fi

check: $(STAMP)  ## lint, format, types, import directions, the public interface, no slow test in make test, workflows
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/python tests/arrows.py src/fullrank
	$(BIN)/python tests/public_api.py --check
	$(BIN)/python tests/durations.py
	$(BIN)/zizmor --offline --quiet .github

coverage: $(STAMP)  ## share of lines and branches that tests run in the rooms of their own names (TESTS="tests/core tests/metrics"); no processes
	COVERAGE_FILE=build/coverage $(PYTEST) -n $(WORKERS) --cov=fullrank --cov-branch --cov-report= \
	  -m "not (slow or process or page or redis or cluster)" $(TESTS)
	COVERAGE_FILE=build/coverage $(BIN)/python -m coverage report --skip-covered \
	  --include="$$(printf '%s/*,' $(TESTS:tests%=src/fullrank%) | sed 's/,$$//')"

gpu: $(STAMP)  ## kernels checked and everything timed on this machine's CUDA device (under 10 minutes); writes results/gpu
	$(BIN)/python -m benchmarks.gpu --json --out results/gpu

golden: $(STAMP)  ## does this tree compute what the baseline commit computed, to the last bit? (BASELINE=HASH: another commit)
	FULLRANK_BASELINE=$(or $(BASELINE),$(FULLRANK_BASELINE)) $(BIN)/python -m tests.golden.compare

bench: $(STAMP)  ## every benchmark but peers and pairs; each prints its figures beside the last record of such a processor, and one JSON object
	@for file in $$(grep -l '^BENCHMARK' benchmarks/*.py); do \
	  name=$$(basename $$file .py); \
	  echo "== benchmarks.$$name"; $(BIN)/python -m benchmarks.$$name --json; \
	done

docs: $(STAMP)  ## the documentation as HTML in docs/_build/html; a warning is an error
	$(BIN)/python docs/make_map.py
	$(BIN)/python docs/make_recipe_table.py
	$(BIN)/python docs/make_plan.py
	$(BIN)/python docs/make_sequence_tables.py
	$(BIN)/python docs/make_results_table.py
	$(BIN)/python docs/make_benchmark_table.py
	$(BIN)/python docs/make_check_table.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

notebooks: $(STAMP)  ## docs/notebooks executed anew, with what they show (under 4 minutes on 2 cores)
	$(BIN)/python docs/run_notebooks.py

readme:  ## README.md and getting started, each command in order from clean clones of the last commit (10 to 20 minutes)
	$(PYTHON) tests/readme_commands.py
