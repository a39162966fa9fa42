# The front door. Every target that runs something begins with setup, which does nothing when nothing changed.
SHELL := /bin/bash
PYTHON := .venv/bin/python
FUZZ_SECONDS ?= 60
export TORCH JOBS
# Debug, wheel and release builds of the same file with the same flags share one compilation.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-torch bench lint format fuzz sanitize soak clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## system packages, .venv, build/release (TORCH=system: this machine's own torch, nothing from the network)
	@scripts/setup

demo: setup ## train on two workers from a notebook, headless; shows what to open
	@$(PYTHON) scripts/demo.py

test: setup ## every test, then a count (ARGS="-k name" for pytest)
	@$(PYTHON) scripts/test.py $(ARGS)

test-torch: setup ## torch's own distributed suite on our backend, beside Gloo (about 5 minutes)
	@$(PYTHON) scripts/test_torch.py

bench: setup ## the speed tables, side by side with the peers
	@$(PYTHON) benchmarks/run.py $(ARGS)

lint: setup ## formatting, clang-tidy, ruff, mypy
	@scripts/lint

format: setup ## put all sources in form
	@scripts/format

fuzz: setup ## each fuzzer for FUZZ_SECONDS (60)
	@scripts/fuzz $(FUZZ_SECONDS)

sanitize: setup ## C++ tests under address + undefined behaviour, then under thread sanitizer
	@scripts/sanitize

soak: setup ## the long tests: warm parents with fastai, Lightning, …; a hundred starts (DDIP_SOAK_ROUNDS=3: a short try)
	@scripts/soak $(ARGS)

clean: ## remove what was built (.venv stays)
	rm -rf build dist python/ddip/_bin python/ddip/*.so .setup/build
