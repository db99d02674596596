# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-fast test-interop check docs kernel format bench attack lock tables clean

help:
	@echo "make demo          set up $(VENV), then run the main job (ends in demo/demo.html)"
	@echo "make test          set up $(VENV), then run every check"
	@echo "make test-fast     the tests that take no time, for a developer at work"
	@echo "make test-interop  try files and planners in stable-worldmodel and LeRobot"
	@echo "make check         layout, lint, types and import contracts"
	@echo "make docs          build the documentation into site/, refusing broken links"
	@echo "make format        let ruff rewrite the code"
	@echo "make bench         measure this machine"
	@echo "make attack        kills, flips, forged files, fuzz, hostile clients (ARGS='--seed 0 --scale 0.1')"
	@echo "make tables        results/ -> results/summary.csv, the tables of README and docs/experiments.md"
	@echo "make lock          write requirements.lock anew: versions and hashes under constraints.txt"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python >= 3.11, or name one: make PYTHON=python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m bilinear_wm.tasks.scene
	@touch $@

demo: setup
	$(BIN)/bwm demo --out demo

test: setup check docs kernel
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone

test-fast: setup kernel
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow and not alone"

# The planner's kernel, compiled once into numba's cache instead of in every process of the tests.
kernel: setup
	$(BIN)/python -c "from bilinear_wm.planning import GaussNewtonPlanner; from bilinear_wm.dynamics.bilinear import BilinearDynamics; GaussNewtonPlanner(BilinearDynamics(8, 4, env_action_size=2))"

test-interop: setup kernel
	tests/interop/run $(VENV)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/mkdocs build --quiet --site-dir site

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Neither is written by hand; a test compares them with the files they come from.
tables: setup
	$(BIN)/bwm report results --out report --readme README.md --full docs/experiments.md
	cp report/summary.csv results/summary.csv

bench: setup
	$(BIN)/python benchmarks/collection.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/shipped.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/realtime.py
	$(BIN)/python benchmarks/deploy.py

lock: setup
	$(BIN)/python docker/lock.py

attack: setup
	$(BIN)/python -m attack $(ARGS)

clean:
	rm -rf $(VENV) .venv-interop demo site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist
