# One command surface: people and CI call the same recipes.
#   make            check + test
#   make demo       a real local model answers through a plan, on CPU, with no key
#   make test       the whole suite, from nothing, on two cores
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
OTHERS := .venv-integrations
PRODUCT := .venv-product

.DEFAULT_GOAL := all
.PHONY: all demo console test test-product test-bare test-data check wheels fix docs site lock clean system-deps integrations integrations-plain reasoning results pays weights torture torture-ci torture-sandbox

all: check test

demo: $(VENV)/.demo  ## answer three questions with a model on this CPU (1.1 GB, fetched once; POOL=small: 98 MB), then yours
	@$(BIN)/dirigent demo $(if $(filter small,$(POOL)),--small)

test: $(VENV)/.dev  ## all tests, four at a time (many wait for processes); the last line counts skipped tests
	@$(BIN)/python -m pytest -n 4 --dist loadfile --max-worker-restart 2 $(PYTEST)

test-product: $(PRODUCT)/.ready  ## the tests of the product in an environment without torch and without the gym; 6 minutes at most
	@$(PRODUCT)/bin/python -m pytest -n 4 --dist loadfile --max-worker-restart 2 --ignore tests/gym --ignore tests/learn $(PYTEST)

test-bare: $(VENV)/.dev  ## every test marked `system`, without the programs of `make system-deps`: it skips or passes; 3 minutes at most
	@timeout 180 .ci/bare $(BIN)/python -m pytest -m system -q -n 2 --dist loadfile $(PYTEST)

test-data: $(VENV)/.dev  ## tests that want question sets of others: DATA=FOLDER with questions_humaneval.jsonl.gz and questions_mbpp.jsonl.gz
	@DATA=$(DATA) $(BIN)/python -m pytest -m datasets tests/datasets $(PYTEST)

wheels: $(VENV)/.dev  ## build the wheel of each distribution and use it in an empty environment outside the checkout
	@.ci/wheels $(BIN)/python

check: $(VENV)/.dev  ## ruff, mypy strict on src, import contracts, generated docs, and the built console where Node and its packages are there
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python web/build.py --check

console: $(VENV)/.dev  ## build the console from web/ into src/dirigent/console (wants Node 20.19 or newer and its packages from npm)
	@npm ci --prefix web --no-audit --no-fund --loglevel=error
	@$(BIN)/python web/build.py

fix: $(VENV)/.dev  ## apply ruff's own fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.dev  ## renew the pages that are made from the code
	@$(BIN)/python docs/generate.py

site: $(OTHERS)/site/.ready  ## the documentation as web pages, in site/; a dead link or anchor fails
	@NO_MKDOCS_2_WARNING=1 $(OTHERS)/site/bin/mkdocs build --quiet --strict && echo "▸ site             site/index.html"

lock: $(VENV)/.dev  ## resolve every dependency anew into constraints.txt (torch: the release we test, CPU or CUDA)
	@$(PIP) install --quiet uv
	@echo 'torch==2.13.0' | $(BIN)/uv pip compile --quiet --upgrade --universal --all-extras --no-emit-index-url \
		--no-header --no-annotate --constraint - --no-emit-package dirigent --no-emit-package dirigent-gym \
		--no-emit-package dirigent-weights pyproject.toml gym/pyproject.toml weights/pyproject.toml | grep -Ev '^(nvidia-|triton|cuda-)' > constraints.txt

system-deps:  ## Debian packages that some tests want (root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		postgresql bubblewrap chromium chromium-driver nodejs
	@# Some packages of nodejs bring npm with them and cannot be installed beside Debian's.
	command -v npm > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm

# ---- programs of others on our server: each framework in an environment of its own, since they disagree ----

PROGRAMS := examples/integrations
FRAMEWORKS := $(patsubst $(PROGRAMS)/requirements-%.txt,%,$(wildcard $(PROGRAMS)/requirements-*.txt))

integrations-plain: $(VENV)/.dev $(OTHERS)/plain/.ready  ## the two vendors' own clients, Python and JavaScript, against a server
	@INTEGRATIONS=$(OTHERS) $(BIN)/python -m pytest -m "integrations or not integrations" tests/integrations/test_official_clients.py $(PYTEST)

integrations: $(VENV)/.dev $(FRAMEWORKS:%=$(OTHERS)/%/.ready) $(OTHERS)/plain/.ready $(OTHERS)/node/.ready  ## frameworks and coding clients, against a server
	@INTEGRATIONS=$(OTHERS) $(BIN)/python -m pytest -m integrations tests/integrations $(PYTEST)

$(OTHERS)/%/.ready: $(PROGRAMS)/requirements-%.txt $(PROGRAMS)/locked/%.txt
	@mkdir -p $(OTHERS) && echo '*' > $(OTHERS)/.gitignore
	@echo "▸ integration      $* into $(OTHERS)/$*"
	@$(PYTHON) -m venv $(OTHERS)/$* && $(OTHERS)/$*/bin/python -m pip install --quiet --disable-pip-version-check \
		-r $< --constraint $(PROGRAMS)/locked/$*.txt && touch $@

$(OTHERS)/site/.ready: Makefile
	@mkdir -p $(OTHERS) && echo '*' > $(OTHERS)/.gitignore
	@$(PYTHON) -m venv $(OTHERS)/site && $(OTHERS)/site/bin/python -m pip install --quiet --disable-pip-version-check \
		mkdocs==1.6.1 mkdocs-material==9.8.1 && touch $@

$(OTHERS)/plain/.ready: $(PROGRAMS)/plain/package.json $(PROGRAMS)/plain/package-lock.json
	@mkdir -p $(OTHERS)/plain && echo '*' > $(OTHERS)/.gitignore
	@echo "▸ integration      OpenAI's and Anthropic's JavaScript clients into $(OTHERS)/plain"
	@cp $^ $(OTHERS)/plain/ && npm ci --prefix $(OTHERS)/plain --no-audit --no-fund --loglevel=error && touch $@

$(OTHERS)/node/.ready: $(PROGRAMS)/package.json $(PROGRAMS)/package-lock.json
	@mkdir -p $(OTHERS)/node && echo '*' > $(OTHERS)/.gitignore
	@echo "▸ integration      Codex and Claude Code into $(OTHERS)/node"
	@cp $^ $(OTHERS)/node/ && npm ci --prefix $(OTHERS)/node --no-audit --no-fund --loglevel=error && touch $@

reasoning: $(VENV)/.reasoning  ## the gym's second source, against the real reasoning-gym (250 MB)
	@$(BIN)/python gym/benchmarks/reasoning.py

results: $(VENV)/.dev  ## docs/results anew: the gym, by table and by the shipped specialists, the paper's dry run, with DATA=FOLDER the recorded models, the specialists; last what the conductor must show (three hours on two cores)
	@# One that is cut goes on where it was, as long as neither the source nor the settings have changed.
	@$(BIN)/python gym/benchmarks/results.py --resume --keep reports/gym-results.jsonl
	@$(BIN)/dirigent eval --tasks gym --planners conductor,ask-all,right,best,oracle --workers local --limit 400 --calibration 60 --out docs/results/gym-local.json > /dev/null
	@$(BIN)/python benchmarks/paper_table.py --out docs/results/paper-dry-run > /dev/null
	@$(BIN)/python benchmarks/fuzz_plan.py 200000 --json > docs/results/fuzz-plan.json
	@$(BIN)/python benchmarks/executor.py --json > docs/results/executor.json
	@if [ -n "$(DATA)" ]; then $(BIN)/python benchmarks/recorded.py --data $(DATA); \
		else echo "recorded models: skipped; give DATA=FOLDER with their answers"; fi
	@# A CPU takes about 40 minutes for it; a matrix that is cut goes on where it was.
	@$(BIN)/python gym/benchmarks/specialists.py --a-skill 10 > /dev/null
	@# A quarter of an hour more; it too goes on where it was cut.
	@$(BIN)/python gym/benchmarks/elsewhere.py > /dev/null
	@# Last, about half an hour: the gym's outcomes of these same 400 questions are taken over, and only the controls are
	@# planned. One that is cut goes on where it was: call this line again, not all of them.
	@$(BIN)/python gym/benchmarks/must.py --n 400 --record reports/gym-results.jsonl > /dev/null

pays: $(VENV)/.dev  ## docs/results/pays.md anew, from DATA=FOLDER with recorded answers: what a learned policy saves or gains (half an hour of one core; one that is cut goes on)
	@$(BIN)/python benchmarks/pays.py --data $(DATA) --work $(if $(WORK),$(WORK),reports/pays)

weights: $(VENV)/.dev  ## the policy that ships for the embedded pool, anew, from DATA=FOLDER with roles_qwen15b
	@$(BIN)/python weights/fit_embedded.py --data $(DATA) --work $(if $(WORK),$(WORK),reports/pays)

torture: $(VENV)/.dev  ## every row of the goal sheet at its full count: hours; ROWS="L1 F9" for some, RATE=60 for a slower machine
	@$(BIN)/python -m tests.torture $(ROWS) --full $(if $(RATE),--rate $(RATE))

torture-ci: $(VENV)/.dev  ## the same rows at a tenth to a hundredth of it: minutes
	@$(BIN)/python -m tests.torture $(ROWS) --ci $(if $(RATE),--rate $(RATE))

torture-sandbox: $(VENV)/.dev  ## every attack 100 times; with DATA=FOLDER, all code graded three times over
	@$(BIN)/python benchmarks/torture_sandbox.py $(if $(DATA),--data $(DATA))

clean:
	rm -rf $(VENV) $(PRODUCT) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@echo "▸ environment      creating $(VENV)"
	@# Debian keeps the part of venv that brings pip in a package of its own; the pip that is there can do it as well.
	@$(PYTHON) -m venv $(VENV) > /dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

# Every environment depends on both projects: a change of either installs anew, in one call of pip.
PROJECTS := pyproject.toml gym/pyproject.toml weights/pyproject.toml constraints.txt

$(VENV)/.demo: $(PROJECTS) | $(BIN)/python
	@start=$$(date +%s); $(INSTALL) --editable '.[local,serve,eval]' --editable ./weights --editable ./gym && touch $@ && \
		echo "▸ environment      $(VENV) ready ($$(( $$(date +%s) - start )) s)"

$(VENV)/.reasoning: $(PROJECTS) | $(BIN)/python
	@$(INSTALL) --editable . --editable './gym[reasoning]' && touch $@

$(VENV)/.dev: $(PROJECTS) | $(BIN)/python
	@$(INSTALL) --editable '.[local,serve,eval,learn,postgres,dev]' --editable ./weights --editable './gym[train,trl]' && touch $@

$(PRODUCT)/.ready: $(PROJECTS)
	@echo "▸ environment      creating $(PRODUCT) (the product alone: no torch, no gym)"
	@$(PYTHON) -m venv $(PRODUCT) > /dev/null && echo '*' > $(PRODUCT)/.gitignore && $(PRODUCT)/bin/python -m pip install \
		--disable-pip-version-check --quiet --constraint constraints.txt --editable '.[local,serve,eval,postgres,dev]' --editable ./weights && touch $@
