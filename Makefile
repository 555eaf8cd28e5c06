# One command surface: people and CI call the same recipes.
#   make            check + test
#   make demo       a real local model answers through a plan, on CPU, with no key
#   make test       the whole suite, from nothing, on two cores
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

.DEFAULT_GOAL := all
.PHONY: all demo test check fix docs lock clean system-deps

all: check test

demo: $(VENV)/.demo  ## answer a few questions with the local model, then yours
	@$(BIN)/dirigent demo

test: $(VENV)/.dev  ## all tests; the last line counts what was skipped
	@$(BIN)/python -m pytest $(PYTEST)

check: $(VENV)/.dev  ## ruff, mypy strict on src, import contracts, generated docs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/generate.py --check

fix: $(VENV)/.dev  ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.dev  ## renew the pages that are made from the code
	@$(BIN)/python docs/generate.py

lock: $(VENV)/.dev  ## resolve every dependency anew into constraints.txt (torch: the release we test, CPU or CUDA)
	@$(PIP) install --quiet uv
	@echo 'torch==2.13.0' | $(BIN)/uv pip compile --quiet --upgrade --universal --all-extras --no-emit-index-url \
		--no-header --no-annotate --constraint - pyproject.toml | grep -Ev '^(nvidia-|triton|cuda-)' > constraints.txt

system-deps:  ## Debian packages that some tests want (root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		postgresql bubblewrap chromium chromium-driver nodejs

clean:
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@echo "▸ environment      creating $(VENV)"
	@# Debian keeps the part of venv that brings pip in a package of its own; the pip that is there can do it as well.
	@$(PYTHON) -m venv $(VENV) > /dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@start=$$(date +%s); $(INSTALL) --editable '.[local,serve,eval]' && touch $@ && \
		echo "▸ environment      $(VENV) ready ($$(( $$(date +%s) - start )) s)"

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) --editable '.[local,serve,eval,train,postgres,dev]' && touch $@
