# `make serve` runs the default model, `make test` runs everything that must pass.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# What shows that there is an NVIDIA GPU: its tool, its driver, or the driver's library in a Linux under Windows. Then the
# CUDA packages come along; "make GPU= serve" leaves them out.
SIGNS := /proc/driver/nvidia/version /dev/nvidiactl /usr/lib/wsl/lib/libcuda.so.1
GPU := $(shell command -v nvidia-smi)$(wildcard $(SIGNS))
INSTALLED := $(VENV)/.installed$(if $(GPU),-cuda)

.PHONY: install serve test test-clients check bench report clean

# The package in an environment of its own; made again when pyproject.toml has changed, or a GPU has come.
install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	$(BIN)/python -m pip install --quiet --editable ".$(if $(GPU),[cuda])"
	touch $@

$(VENV)/.test: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[test]" # most files of torch are never imported
	touch $@

serve: install
	$(BIN)/monolane serve

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two processes share the tests (tests/conftest.py says how): most wait or compile, and leave a core idle. A GPU is not
# shared: there, one process does everything.
PROCESSES := $(if $(GPU),0,2)

# Where an environment forbids bytecode, every process of every test would compile torch and all else again.
test: check
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(PROCESSES) --no-loadscope-reorder

# Thirteen clients of other makers, in an environment of their own (aider needs older packages, and has its own), each
# with a real model. The table is benchmarks/clients/table.md.
CLIENTS := .venv-clients

$(CLIENTS)/.installed: benchmarks/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)/all
	$(PYTHON) -m venv $(CLIENTS)/aider
	$(CLIENTS)/all/bin/python -m pip install --quiet --no-compile --requirement $<
	-$(CLIENTS)/aider/bin/python -m pip install --quiet --no-compile aider-chat
	touch $@

test-clients: install $(CLIENTS)/.installed
	$(BIN)/python benchmarks/clients/run.py

# Speed beside the machine's read ceiling and beside llama.cpp; minutes, on an otherwise idle machine.
bench: install
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	for model in smollm2-135m qwen2.5-coder-1.5b; do \
		$(BIN)/python -m monolane.bench run $$model --peers llama.cpp --keep && \
		$(BIN)/python -m monolane.bench load $$model --keep || exit 1; \
	done
	$(MAKE) report

# The README's tables and the page of all results, from benchmarks/results.
report: install
	$(BIN)/python -m monolane.bench.report

clean:
	rm -rf $(VENV) $(CLIENTS) build dist
