# make demo    the main job on the embedded digits
# make test    ruff, mypy --strict, pytest; `make lint` leaves pytest out
# make fuzz    broken files for every reader, MINUTES=30; what failed lies in build/fuzz/; Linux
# make soak    runs and models that are killed at random and go on, MINUTES=120, on two cores; what was lost: build/soak/
# make bench   speed and cost on this machine, which should be idle: 8 to 12 minutes
# make bench-accuracy    seconds to accuracy on MNIST: trains for real, half an hour or more; ENGRAM_DATA
# make docs    pages of the public names, in build/docs/
# make dist    wheel and source archive, in dist/
#
# Needs Python 3.11 or newer with venv, make and git. Debian, Ubuntu: apt install python3-venv make git
# Installs into .venv. On Linux PyPI's PyTorch brings gigabytes of CUDA; the build for CPUs alone:
#     make TORCH_INDEX=https://download.pytorch.org/whl/cpu demo
PYTHON ?= python3
TORCH_INDEX ?=
BIN := .venv/bin
CODE := src tests examples benchmarks docs
STAMP := $(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test lint fuzz soak bench bench-accuracy docs install dist clean

demo: install
	$(BIN)/engram run --dataset digits --method dgmw --out runs/demo-$(STAMP)
	$(BIN)/engram sample runs/demo-$(STAMP) --out runs/demo-$(STAMP)/grid.png
	$(BIN)/engram verify runs/demo-$(STAMP)

test: lint
	$(BIN)/pytest --numprocesses auto --dist loadgroup

lint: install
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

fuzz: install
	PYTHONPATH=tests $(BIN)/python -m fuzzing --minutes $(or $(MINUTES),30) --jobs $(or $(JOBS),1) --seed $(or $(SEED),1)

soak: install
	$(BIN)/python tests/soak.py --minutes $(or $(MINUTES),120) --jobs $(or $(JOBS),2) --seed $(or $(SEED),0)

bench: install
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/predict.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/share.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/growth.py --rounds 2
	$(BIN)/python benchmarks/scale.py

bench-accuracy: install
	$(BIN)/python benchmarks/accuracy.py

docs: install
	$(BIN)/python docs/api.py build/docs

# installed once: again only when the requirements change
install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "engram needs Python 3.11 or newer; set PYTHON=…")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo '$(PYTHON) cannot make a virtual environment, ensurepip is missing; Debian, Ubuntu: apt install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev]'
	touch $@

# from a clean start, so that no file of an earlier build gets into the wheel
dist: install
	rm -rf build dist
	$(BIN)/python -m build --outdir dist

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
