# Everything a researcher does here, one target each. `make help` lists them.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
SWEEP   ?= sweeps/node.yaml
DEVICES ?=
ARGS    ?=
RUNS    ?= runs/$(basename $(notdir $(SWEEP)))
RESULTS ?= results/$(basename $(notdir $(SWEEP)))

.DEFAULT_GOAL := help
.PHONY: help setup demo test slurm-test sweep status plots report estimate bench check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  SWEEP=sweeps/X.yaml  DEVICES=0,1 (GPU numbers; on a CPU how many runs at a time)  ARGS='--train.lr 1e-3'"

setup: $(VENV)/ready ## make .venv with the tested versions of everything

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,tensorboard,slurm]'
	touch $@

demo: setup ## train small ladders on a CPU, fit, draw, report: ten minutes from nothing
	$(BIN)/python -m scaling prepare configs/data/python.yaml
	$(BIN)/python -m scaling sweep sweeps/demo.yaml
	$(BIN)/python -m analysis collect runs/demo results/demo
	$(BIN)/python -m analysis fit results/demo
	$(BIN)/python -m analysis multiplier results/demo
	$(BIN)/python -m analysis plots results/demo
	$(BIN)/python -m analysis report results/demo

test: setup ## run the tests
	$(BIN)/python -m pytest

slurm-test: setup ## train a sweep on a real Slurm of this machine; needs root, and Debian's packages, which it installs
	@tests/slurm/install || echo "slurm-test: there is no Slurm here, so a sweep on a cluster is NOT tested"
	$(BIN)/python -m pytest -m slow -n 0 -rs tests/slurm

sweep: setup ## train every run of SWEEP that is not finished
	$(BIN)/python -m scaling sweep $(SWEEP) $(if $(DEVICES),--devices $(DEVICES)) $(ARGS)

status: setup ## print where the runs of SWEEP stand; ARGS=--watch goes on until they are done
	$(BIN)/python -m scaling status $(SWEEP) $(ARGS)

estimate: setup ## print what SWEEP costs: parameters, tokens, FLOPs, memory, hours, money (ARGS='--peak-tflops 989 --price 2.5')
	$(BIN)/python -m scaling estimate $(SWEEP) $(if $(DEVICES),--devices $(DEVICES)) $(ARGS)

plots: setup ## draw the figures of SWEEP's results, and the paper's own beside them
	if [ -d $(RUNS) ]; then $(BIN)/python -m analysis collect $(RUNS) $(RESULTS); fi
	$(BIN)/python -m analysis plots $(RESULTS)
	$(BIN)/python -m analysis plots results/published

report: plots ## write the page of SWEEP's results
	$(BIN)/python -m analysis fit $(RESULTS)
	$(BIN)/python -m analysis multiplier $(RESULTS)
	$(BIN)/python -m analysis report $(RESULTS)

bench: setup ## measure steps, memory and data side by side with what a user would pick instead: half an hour, mostly compiling
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/data.py --out results/bench/data.json
	$(BIN)/python benchmarks/memory.py --out results/bench/memory.json
	$(BIN)/python benchmarks/memory_estimate.py --out results/bench/memory_estimate.json
	$(BIN)/python benchmarks/schemes.py --out results/bench/schemes.json
	$(BIN)/python benchmarks/schemes.py sweeps/cpu-dynamics.yaml --out results/bench/schemes-deep.json
	$(BIN)/python benchmarks/train_step.py --shape wide --eager --out results/bench/wide-eager.json
	$(BIN)/python benchmarks/train_step.py --shape wide --bf16 --out results/bench/wide.json
	$(BIN)/python benchmarks/train_step.py --shape narrow --only block full 'Hugging Face Llama' --out results/bench/narrow.json
	$(BIN)/python benchmarks/train_step.py --shape deep --only block --out results/bench/deep.json

check: setup ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove the environment and caches; runs, data and results stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
