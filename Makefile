# Two commands: `make lab` and `make test`. Both set everything up first, and only once.

PY := .venv/bin/python
FITS := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(FITS)' 2>/dev/null && { echo $$p; break; }; done)

# Python keeps what it has compiled, module by module as each is imported, whatever the reader's shell says: without
# that every process would start 8 s later. That pip compiles all of them, most of which nobody imports, takes minutes.
unexport PYTHONDONTWRITEBYTECODE

# JupyterLab's terminals and `!speclib …` in a notebook find the course's own commands. What is said into the
# reader's shell goes by that shell's own PATH: it names a command as the reader can type it.
READERS_PATH := $(PATH)
export PATH := $(CURDIR)/.venv/bin:$(PATH)

ROOT_FLAG = $(if $(filter 0,$(shell id -u)),--allow-root)
# Without a display a text browser would take over the terminal: JupyterLab prints the address instead.
NO_DISPLAY = $(if $(filter Darwin,$(shell uname))$(DISPLAY)$(WAYLAND_DISPLAY),,--no-browser)

.PHONY: help setup lab test outputs docs vllm-check walk lint format doctor clean moved
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready .venv/weights ## Install the pinned packages into .venv and fetch the default model, once

lab: setup ## Open the notebooks in JupyterLab (LAB_ARGS="--no-browser --port 8899" for a remote machine)
	$(PY) -m jupyterlab notebooks $(ROOT_FLAG) $(NO_DISPLAY) $(LAB_ARGS)

# PyTorch's threads spin while they wait for each other: beside a second busy process a step then takes several times
# as long. Waiting passively costs little on an idle machine and keeps the tests bearable on a shared one. Two files at
# a time, since a browser and a kernel wait for each other; in order, what takes longest first: the browser's files,
# and of the notebooks the last.
test: setup ## Run every test: lint, units, all notebooks compared with their outputs, the browser
	OMP_WAIT_POLICY=passive $(PY) -m pytest tests $$(ls -r notebooks/*.ipynb) -n 2 --dist loadfile --no-loadscope-reorder \
		--nbval --nbval-current-env --nbval-cell-timeout 300 --nbval-sanitize-with tests/nbval_sanitize.cfg

outputs: setup ## Run the notebooks and store their outputs
	$(PY) tools/notebooks.py outputs

docs: setup ## Build the pages of docs/ into build/site, without a single warning
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

vllm-check: setup ## Bench vLLM beside speclib: VLLM=/path/to/its/environment/bin make vllm-check
	$(PY) tools/vllm_check.py $(VLLM_ARGS)

walk: setup ## Walk through the course in a browser as a new reader would; what is wrong, and how long drags take
	OMP_WAIT_POLICY=passive $(PY) tools/walk.py $(WALK_ARGS)

lint: setup ## Check style and the state of the notebooks
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) tools/notebooks.py lint

format: setup ## Put code and notebooks into the one format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

doctor: setup ## Say what this machine has, what it lacks, and the remedy
	@PATH='$(READERS_PATH)' .venv/bin/speclib doctor

clean: ## Remove .venv and caches (the model's weights stay in your cache folder)
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} + -o -name .ipynb_checkpoints -prune -exec rm -rf {} +

# The stamp holds the folder it was made in: in a repository that was moved, the editable install points nowhere.
.venv/ready: pyproject.toml constraints.txt $(shell grep -qxF '$(CURDIR)' .venv/ready 2>/dev/null || echo moved)
	@$(if $(PYTHON),$(PYTHON),false) -c '$(FITS)' 2>/dev/null || { echo "The course needs Python 3.11 to 3.14 with\
	 venv: install one (Debian, Ubuntu: apt install python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PY) -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	$(PY) -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@echo '$(CURDIR)' > $@

# A link to the fetched folder: when the cache is emptied it dangles, and make fetches again.
.venv/weights: | .venv/ready
	@folders=$$(PATH='$(READERS_PATH)' .venv/bin/speclib fetch smol) && ln -sfn "$$(echo "$$folders" | head -n 1)" $@
