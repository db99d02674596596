# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check docs format bench attack lock clean

help:
	@echo "make demo    set up $(VENV), then run the main job (writes demo/)"
	@echo "make test    set up $(VENV), then run every check"
	@echo "make docs    build the documentation into site/, refusing broken links"
	@echo "make format  let ruff rewrite the code"
	@echo "make bench   measure this machine"
	@echo "make lock    write requirements.lock anew: versions and hashes under constraints.txt"
	@echo "make attack  kills, flips, forged files, fuzz, hostile clients (ARGS='--seed 0 --scale 0.1')"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python >= 3.11, or name one: make PYTHON=python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m bilinear_wm.tasks.scene
	@touch $@

demo: setup
	$(BIN)/bwm demo --out demo

test: setup check docs
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

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

bench: setup
	$(BIN)/python benchmarks/collection.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/shipped.py
	$(BIN)/python benchmarks/realtime.py

lock: setup
	$(BIN)/python docker/lock.py

attack: setup
	$(BIN)/python -m attack $(ARGS)

clean:
	rm -rf $(VENV) demo site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist
