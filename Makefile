# make report: environment, native build, peers, every notebook, HTML pages.  make test: everything the project promises.
# Both work from a fresh clone in any order, and come back in seconds where nothing has changed.

UV      := $(shell command -v uv)
PYTHON  ?= python3
STAMPS  := .stamps
# Python must keep its compiled files. Where it may not, as in many containers, each kernel compiles all that
# it imports (5 s).
unexport PYTHONDONTWRITEBYTECODE
SHELL   := /bin/bash
NATIVE  := $(wildcard native/include/* native/src/* native/src/ace/* native/bench/*)
SOURCES := Makefile pyproject.toml $(wildcard hakmem_py/* hakmem_py/templates/* hakmem_py/templates/*/* data/specs/* data/reference/*/*) \
           $(NATIVE) $(wildcard notebooks/*.ipynb data/published/*)
TESTS   := $(wildcard tests/*.py tests/native/* tests/native/*/*) README.md environment.yml uv.lock requirements.lock

# An activated conda environment named hakmem is used as it is; otherwise .venv at the root of the repository.
ifeq ($(CONDA_DEFAULT_ENV),hakmem)
PY  := $(CONDA_PREFIX)/bin/python
ENV := $(STAMPS)/conda
else
PY  := .venv/bin/python
ENV := $(STAMPS)/env
endif

.PHONY: help env report test lab bench bench-check lint clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^## //p' Makefile

## make env          the Python environment (.venv by uv, else by venv and pip, from the same lock)
env: $(ENV)

# $(call need,shell condition,what is missing,the Debian package that brings it)
need = $(1) || { echo "hakmem: $(2) is missing. Install it by: sudo apt install $(3)" >&2; exit 1; }

# An environment has its folder's path in it: copied or moved, it would run what lies at the old one.
ifneq ($(shell cat $(STAMPS)/env 2>/dev/null),$(CURDIR))
.PHONY: $(STAMPS)/env
endif

$(STAMPS)/env: pyproject.toml uv.lock requirements.lock
	@test ! -L .venv || { echo "hakmem: .venv is a link, and what it leads to would be cleared: remove the link" >&2; exit 1; }
	@mkdir -p $(STAMPS)
	@$(call need,command -v gcc >/dev/null,a C compiler (gcc),gcc libc6-dev)
ifeq ($(UV),)
	@$(call need,command -v $(PYTHON) >/dev/null,Python ($(PYTHON)),python3)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "hakmem: Python 3.11 or newer is needed; name one by: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(call need,$(PYTHON) -c 'import venv$(comma) ensurepip' 2>/dev/null,the Python module venv,python3-venv)
	$(PYTHON) -m venv --clear .venv
	@# The lock is complete, so pip need not resolve anything; a module is compiled when it is first imported.
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile -r requirements.lock
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	rm -rf .venv
	uv sync --frozen --quiet
endif
	@$(call need,.venv/bin/python -c 'import sysconfig$(comma) os; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null,Python.h,python3-dev)
	@pwd -P > $@

comma := ,

$(STAMPS)/conda: pyproject.toml environment.yml
	@mkdir -p $(STAMPS)
	@$(PY) -c 'import hakmem_py' || { echo "hakmem: refresh it by: conda env update -f environment.yml" >&2; exit 1; }
	$(PY) -m pip install --quiet --group dev
	@touch $@

# The other allocators, unpacked into data/peers if the system lacks them. One that cannot be had is no error:
# it stays a row that says so.
$(STAMPS)/peers: $(ENV)
	$(PY) -m hakmem_py peers --get
	@touch $@

## make report       builds, measures quickly, runs every notebook; the pages are in reports/html
report: reports/index.html

reports/index.html: $(STAMPS)/peers $(SOURCES)
	$(PY) -m hakmem_py report
	@touch $@
	@echo "Open $(CURDIR)/$@"

## make test         everything the project promises, as tests; comes back at once while nothing has changed
test: $(STAMPS)/test
	@cat $(STAMPS)/test

$(STAMPS)/test: $(ENV) $(SOURCES) $(TESTS)
	@rm -f $@
	@# In the order of their names: by the number of their tests, files of a few long ones would run alone at the end.
	@set -o pipefail; $(PY) -m pytest -n logical --dist loadfile --no-loadscope-reorder 2>&1 | tee $(STAMPS)/test.log
	@tail -n 1 $(STAMPS)/test.log > $@

## make lab          JupyterLab on the notebooks; options of its own as LAB=..., as root, say in a container, LAB=--allow-root
lab: $(ENV)
	$(PY) -m jupyter lab --notebook-dir=notebooks $(LAB)

## make bench        every workload's time under every allocator, with intervals (memory: 05, 09; pools and placement: 06)
bench: $(STAMPS)/peers
	$(PY) -m hakmem_py run 04_patterns 05_scorecard 05_drift 05_threads

## make bench-check  this working tree against the last commit (BASE=commit for another), with a verdict
bench-check: $(ENV)
	$(PY) -m hakmem_py check --base $(or $(BASE),HEAD)

## make lint         ruff and clang-format, without changing anything
lint: $(ENV)
	$(PY) -m ruff check .
	clang-format --dry-run --Werror $(filter %.c %.h,$(NATIVE))

## make clean        removes the environment, builds and reports; the measured samples stay
clean:
	rm -rf .venv $(STAMPS) native/build reports/index.html reports/html reports/executed .pytest_cache .ruff_cache
