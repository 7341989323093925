# The one door: every target prints the command it runs, and CI calls the same targets.
# Needs Python 3.11 or newer, make and the package registries; `make test` as root also installs Mosquitto and nft.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?= 1

.PHONY: setup demo check test quick sim docs golden-update clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/erfs run scenarios/library/single-link.yaml --seed $(SEED) --out out/demo --force

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP)
	tests/install-programs
	PYTHONHASHSEED=0 $(BIN)/pytest -q -n 2 -m "not live" tests
	PYTHONHASHSEED=1 $(BIN)/pytest -q -n 2 -m "not live" tests/agent tests/controller tests/golden tests/paths
	PYTHONHASHSEED=1 $(BIN)/pytest -q -m live tests

quick: $(STAMP)
	$(BIN)/pytest -q -n 2 -m "not live and not mosquitto" tests --ignore tests/bus --ignore tests/sim

sim: $(STAMP)
	$(BIN)/erfs run scenarios/library/single-link.yaml --seed $(SEED) --out out/sim --force

docs: $(STAMP)
	$(BIN)/python -m erfs_scenario.schema_files
	git diff --exit-code -- scenarios/erfs_scenario docs

golden-update: $(STAMP)
	GOLDEN_UPDATE=1 $(BIN)/pytest -q tests/golden

clean:
	rm -rf $(VENV) out
