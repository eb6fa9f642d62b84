# Two commands do everything on a fresh machine with Python 3.11+: `make demo` and `make test`.
#
# TORCH_INDEX chooses another build of PyTorch, for instance a CUDA one:
#   make test TORCH_INDEX="--index-url <address of that build's index>"

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
# Tests wait much of their time, so there are half as many again as processors.
PYTEST_ARGS ?= -n $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
RAY_VENV ?= .venv-ray
RAY_PIP := $(RAY_VENV)/bin/python -m pip --disable-pip-version-check
RAY_STAMP := $(RAY_VENV)/.installed
OPENAI_VENV ?= .venv-openai
OPENAI_PIP := $(OPENAI_VENV)/bin/python -m pip --disable-pip-version-check
OPENAI_STAMP := $(OPENAI_VENV)/.installed
OPENAI_TOOLS := tests/openai_tools
UV := uv==0.13.8
LOCK_VENV := .cache/lock-venv
TESTED := .cache/tested
TESTED_FILES := $(shell find src tests examples docs -name '*.py' -o -name '*.c' -o -name '*.h' -o -name '*.md')

.DEFAULT_GOAL := help
.PHONY: help install lock demo test test-ray test-openai soak qa lint types coverage docs bench release clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# PyTorch goes first and alone: whatever depends on it would otherwise pull the largest build. It comes
# in many builds, so it is the one package without a hash here.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt "$(TORCH)" $(TORCH_INDEX)
	$(PIP) install --quiet --require-hashes --no-deps --requirement requirements.lock
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	$(PIP) check
	touch $(STAMP)

install: $(STAMP)  ## a virtual environment with everything for development

# The hashes of all files of each pinned version, for every platform. PyTorch is left out by a marker
# that is never true.
lock:  ## write requirements.lock again after a change of constraints.txt or of dependencies
	test -x $(LOCK_VENV)/bin/uv || $(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip --disable-pip-version-check install --quiet $(UV)
	echo "torch; python_version < '3'" > $(LOCK_VENV)/no-torch.txt
	$(LOCK_VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11.0 --extra dev \
	  --constraint constraints.txt --override $(LOCK_VENV)/no-torch.txt --generate-hashes \
	  --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	  --output-file requirements.lock pyproject.toml
	$(LOCK_VENV)/bin/uv pip compile --quiet --upgrade --no-deps --universal --python-version 3.11.0 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	  --output-file tests/contract/cookbook.txt tests/contract/cookbook.in
	$(LOCK_VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11.0 --extra server \
	  --override $(LOCK_VENV)/no-torch.txt --generate-hashes \
	  --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	  --output-file $(OPENAI_TOOLS)/requirements.txt pyproject.toml $(OPENAI_TOOLS)/requirements.in

demo: $(STAMP)  ## start the embedded server, train a LoRA adapter, sample before and after
	$(BIN)/python examples/demo.py

# Coverage is recorded by this one run, so that `make qa` after it need not run the tests again.
test: $(STAMP)  ## run all tests
	rm -f $(TESTED) .coverage .coverage.*
	$(BIN)/python tools/browser_setup.py
	$(BIN)/python tools/run_tests.py $(PYTEST_ARGS) --cov --cov-report=
	@mkdir -p $(dir $(TESTED))
	$(if $(filter file,$(origin PYTEST_ARGS)),@touch $(TESTED))

$(TESTED): $(STAMP) $(TESTED_FILES)
	$(MAKE) test

# Ray is large, and no part of the development environment.
$(RAY_STAMP): pyproject.toml constraints.txt
	test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	$(RAY_PIP) install --quiet "$(TORCH)" $(TORCH_INDEX)
	$(RAY_PIP) install --quiet --constraint constraints.txt --editable ".[dev,ray]"
	touch $(RAY_STAMP)

test-ray: $(RAY_STAMP)  ## the tests of workers on a Ray cluster, in an environment of their own
	$(RAY_VENV)/bin/python -m pytest tests/launch

# LiteLLM and others hold packages at versions that are not those of the development environment.
$(OPENAI_STAMP): pyproject.toml $(OPENAI_TOOLS)/requirements.txt
	test -x $(OPENAI_VENV)/bin/python || $(PYTHON) -m venv $(OPENAI_VENV)
	$(OPENAI_PIP) install --quiet "$(TORCH)" $(TORCH_INDEX)
	$(OPENAI_PIP) install --quiet --require-hashes --no-deps --requirement $(OPENAI_TOOLS)/requirements.txt
	$(OPENAI_PIP) install --quiet --no-build-isolation --no-deps --editable .
	$(OPENAI_PIP) check
	touch $(OPENAI_STAMP)

test-openai: $(OPENAI_STAMP)  ## LiteLLM, LangChain and lm-eval at the server, in an environment of their own
	$(OPENAI_VENV)/bin/python -m pytest $(OPENAI_TOOLS)

soak: $(STAMP)  ## the long form of the fault, load and fuzz campaigns
	TINKEX_SOAK=1 $(BIN)/python -m pytest -m soak --timeout=3600 --durations=0 tests/faults tests/security

qa: lint types docs coverage  ## lint, format, known weaknesses, types, documentation and coverage

lint: $(STAMP)  ## ruff, its format, and bandit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src

types: $(STAMP)  ## mypy and pyright
	$(BIN)/mypy
	$(BIN)/pyright

coverage: $(TESTED)  ## run the tests if they changed, then check the coverage
	$(BIN)/coverage json --quiet -o .cache/coverage.json
	$(BIN)/python tools/coverage_gate.py .cache/coverage.json

docs: $(STAMP)  ## build the documentation into site/, with warnings as errors
	$(BIN)/python docs/_generate.py --check
	$(BIN)/zensical build --strict

bench: $(STAMP)  ## measure, side by side with PEFT, generate, vLLM and the official client
	$(BIN)/python benchmarks/run_all.py

release: $(STAMP)  ## wheel and source package, checked, and a list of what they depend on, in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python tools/check_release.py dist
	$(BIN)/python tools/sbom.py dist

clean:  ## remove the environment and everything made
	rm -rf $(VENV) $(RAY_VENV) $(OPENAI_VENV) .demo .contract .cache dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
