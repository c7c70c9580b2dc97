# make quickstart   a real sentence encoder goes the whole road, with and without kernels
# make test         the whole suite: C++ and Python
# make check        linters, types, import rules, generated files
# make build        the kernels, into build/ops
# make wheel        what `pip install .` builds, into dist/
#
# Each is enough on a machine that has never seen the project; the second time is fast.
# VENV=path uses another virtual environment, which must be complete: nothing is installed into it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help environment build build-tests test-programs quickstart test check format wheel sanitize fuzz clean

VENV ?= .venv
PYTHON := $(VENV)/bin/python
READY := $(if $(filter .venv,$(VENV)),.venv/.ready)

help:
	@sed -n 's/^# //p' Makefile | head -5

environment: $(READY)

.venv/.ready: pyproject.toml tools/constraints.txt tools/weights.txt tools/make_environment
	@tools/make_environment
	@touch $@

build: $(READY)
	@VENV=$(VENV) tools/build_kernels

test-programs:
	@tools/install_test_programs

build-tests: $(READY)
	@VENV=$(VENV) tools/build_kernels --tests

quickstart: build
	@$(PYTHON) tools/quickstart.py

test: build-tests test-programs
	@$(PYTHON) tools/run_tests.py

check: $(READY)
	@VENV=$(VENV) tools/check

format: $(READY)
	@$(VENV)/bin/ruff check --fix-only --quiet . && $(VENV)/bin/ruff format .
	@git ls-files 'custom_ops/*.h' 'custom_ops/*.cc' | xargs -r $(VENV)/bin/clang-format -i

wheel: $(READY)
	@$(PYTHON) -m build --wheel --outdir dist .

sanitize: $(READY)
	@VENV=$(VENV) tools/build_kernels --sanitize

fuzz: $(READY)
	@VENV=$(VENV) tools/fuzz $(RUNS)

clean:
	rm -rf build dist .cache .hypothesis .import_linter_cache
