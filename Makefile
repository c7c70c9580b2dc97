# make quickstart   converts a real sentence encoder, runs it with and without the kernels
# make quickstart-llm   exports a real language model from its GGUF file, and lets it answer
# make test         runs the whole suite: C++ and Python
# make test-fast    runs the tests for every change, in a quarter of the time
# make check        runs linters, type checks, import rules, and checks generated files
# make build        builds the kernels into build/ops
# make wheel        builds the wheel of `pip install .` into dist/
# make wheels       builds and checks the wheels of all platforms (docs/installation.md)
# make site         builds the site of docs/ into build/site (docs/README.md)
#
# Each works on a fresh machine; later runs are fast.
# VENV=path uses another virtual environment, which must be complete: nothing is installed into it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help environment build build-tests test-programs quickstart quickstart-llm test test-fast check format
.PHONY: wheel wheels site test-site sanitize fuzz fuzz-files test-foreign test-transformers test-webgpu test-onnx
.PHONY: test-cuda test-llama-cpp test-pipelines test-media test-diffusers test-oldest test-torch coverage clean

VENV ?= .venv
PYTHON := $(VENV)/bin/python
READY := $(if $(filter .venv,$(VENV)),.venv/.ready)

help:
	@sed -n 's/^# //p' Makefile | head -9

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

quickstart-llm: build
	@$(PYTHON) -W ignore tools/quickstart_llm.py

test: build-tests test-programs
	@$(PYTHON) tools/run_tests.py

# Selects by the rules of tests/support/fast_lane.py.
test-fast: build-tests
	@$(PYTHON) tools/run_tests.py --fast

# Measures coverage and writes docs/internals/coverage.md: TESTS=--fast measures the fast lane.
coverage: build test-programs
	@$(PYTHON) tools/measure_coverage.py $(TESTS)

# On demand (docs/foreign_models.md): models of other libraries, models of onnx's backend tests.
# SWEEP passes options: `make test-foreign SWEEP=--failed`.
test-foreign: build
	@VENV=$(VENV) tools/make_foreign_environment
	@build/foreign-env/bin/python -W ignore tools/sweep_foreign.py $(SWEEP)

# On demand (docs/transformers_classes.md): every model class of the installed transformers.
test-transformers: build
	@$(PYTHON) -W ignore tools/sweep_classes.py $(SWEEP)

# On demand (docs/language_models.md): exported folders in all of transformers' pipelines.
test-pipelines: $(READY)
	@COREAI_PIPELINES=all $(PYTHON) -m pytest -q tests/huggingface/test_opened.py tests/huggingface/heads/test_masks.py

# On demand (docs/diffusion.md): the pictures of diffusers' pipelines, in optimum too.
test-diffusers: build
	@VENV=$(VENV) tools/make_optimum_environment
	@$(PYTHON) -W ignore tools/sweep_diffusion.py

# On demand (docs/models_on_providers.md): the documented models on WebGPU, natively and in Chromium.
test-webgpu: $(READY) test-programs
	@VENV=$(VENV) tools/make_provider_environment webgpu
	@build/webgpu-env/bin/python -W ignore tools/sweep_providers.py $(SWEEP)

# On demand (docs/models_on_providers.md): the same models on CUDA, on a machine with a GPU.
test-cuda: $(READY)
	@VENV=$(VENV) tools/make_provider_environment cuda
	@build/cuda-env/bin/python -W ignore tools/sweep_providers.py --target cuda $(SWEEP)

# On demand (docs/language_models.md): models of pictures and sound against transformers.
test-media: $(READY)
	@$(PYTHON) -W ignore tools/sweep_media.py $(SWEEP)

# On demand (docs/gguf.md): greedy tokens of written GGUF files in llama.cpp.
test-llama-cpp: build
	@$(PYTHON) -W ignore tools/compare_llama_cpp.py

test-onnx: build
	@$(PYTHON) tools/sweep_backend.py $(SWEEP)

# On demand (docs/runtimes.md): the files of each target in the oldest onnxruntime they are for.
# SWEEP=--again runs what failed. A run that was stopped goes on.
test-oldest: $(READY)
	@$(PYTHON) -W ignore tools/sweep_oldest.py $(SWEEP)

check: $(READY)
	@VENV=$(VENV) tools/check

format: $(READY)
	@$(VENV)/bin/ruff check --fix-only --quiet . && $(VENV)/bin/ruff format .
	@git ls-files 'custom_ops/*.h' 'custom_ops/*.cc' | xargs -r $(VENV)/bin/clang-format -i

wheel: $(READY)
	@$(PYTHON) -m build --wheel --outdir dist .

# WHEELS passes options: `make wheels WHEELS="--only win_amd64"`.
wheels: $(READY)
	@$(PYTHON) tools/make_wheels.py $(WHEELS)

site: $(READY)
	@VENV=$(VENV) tools/make_site

# Opens the site in a browser, at the widths of a phone and a desktop.
test-site: site test-programs
	@$(PYTHON) tools/look_at_site.py

sanitize: $(READY)
	@VENV=$(VENV) tools/build_kernels --sanitize

fuzz: $(READY)
	@VENV=$(VENV) tools/fuzz $(RUNS)

# Runs the suites that depend on torch with another version of it: TORCH=2.15.0
test-torch: $(READY)
	@$(PYTHON) tools/run_with_torch.py $(TORCH)

# Fuzzes the loader with mutated model files: MINUTES=10 SEED=number
fuzz-files: $(READY)
	@$(PYTHON) tools/fuzz_files.py --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf build dist .cache .hypothesis .import_linter_cache
