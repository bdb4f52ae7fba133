# make demo    the main job on the embedded digits
# make test    ruff, mypy --strict, pytest
# make bench   speed and cost on this machine, which should be idle: 6 to 10 minutes
# make bench-accuracy    seconds to accuracy on MNIST: trains for real, half an hour or more; ENGRAM_DATA
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench bench-accuracy install clean

demo: install
	$(BIN)/engram run --dataset digits --method dgmw --out runs/demo-$(STAMP)
	$(BIN)/engram sample runs/demo-$(STAMP) --out runs/demo-$(STAMP)/grid.png
	$(BIN)/engram verify runs/demo-$(STAMP)

test: install
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --dist loadgroup

bench: install
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/share.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/growth.py --rounds 2
	$(BIN)/python benchmarks/scale.py

bench-accuracy: install
	$(BIN)/python benchmarks/accuracy.py

# installed once: again only when the requirements change
install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "engram needs Python 3.11 or newer; set PYTHON=…")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache

STAMP := $(shell date +%Y%m%d-%H%M%S)
