"""The sweeps over shapes, block sizes and ablations: what every cell and arm is named for, all else equal."""

import csv
import re
from pathlib import Path

import pytest

from scaling.compute import flops_per_token, non_embedding_parameters
from scaling.sweep.plan import read_plan

ROOT = Path(__file__).parents[2]
# Parameters, FLOPs in the ledger `paper`, and how far a cell may be off in parameters and in its two ratios: whole
# numbers of layers and heads are coarser in small models. The first is that of arXiv 2603.15031, figure 7.
GRIDS = {
    "shape": (2.3e8, 6.5e19, 0.025, 0.075, (15, 30, 45, 60, 75), (0.3, 0.4, 0.5, 0.6, 0.7)),
    "cpu-shape": (1e6, 6e13, 0.065, 0.15, (4, 8, 16), (0.3, 0.5, 0.7)),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_cell_has_its_ratios_at_equal_parameters_and_compute(name):
    parameters, compute, off, ratio_off, widths, heads = GRIDS[name]
    arms = {}
    for run in read_plan(ROOT / "sweeps" / f"{name}.yaml").runs:
        arms.setdefault(run.model.name, {})[run.variant] = run
        model = run.model
        width, of_heads = map(float, re.fullmatch(r"d([\d.]+)-h([\d.]+)", model.name).groups())
        assert model.d_model / model.n_layers == pytest.approx(width, rel=ratio_off)
        assert model.n_heads / model.n_layers == pytest.approx(of_heads, rel=ratio_off)
        if run.variant == "baseline":
            assert non_embedding_parameters(run.shape) == pytest.approx(parameters, rel=off)
            assert flops_per_token(run.shape, "paper") * run.tokens == pytest.approx(compute, rel=1e-3)
    assert set(arms) == {f"d{width}-h{of_heads}" for width in widths for of_heads in heads}
    for by_variant in arms.values():
        assert set(by_variant) == {"baseline", "block"}
        assert by_variant["baseline"].train == by_variant["block"].train


def test_the_papers_grid_is_kimi_with_experts_of_its_ratio():
    for run in read_plan(ROOT / "sweeps" / "shape.yaml").runs:
        assert run.model.kimi is not None
        assert run.model.head_dim == 128
        assert run.model.d_ff / run.model.d_model == pytest.approx(0.45, abs=0.015)


@pytest.mark.parametrize("name", ["block-size", "cpu-block-size"])
def test_block_sizes_go_from_full_to_one_block(name):
    runs = read_plan(ROOT / "sweeps" / f"{name}.yaml").runs
    schemes = {run.variant: run.residual for run in runs}
    assert set(schemes) == {"baseline", "full", *(f"block_size_{2**i}" for i in range(1, 6))}
    assert all(schemes[f"block_size_{2**i}"].options == {"block_size": 2**i} for i in range(1, 6))
    assert all(run.model.n_sublayers == 32 and run.train == runs[0].train for run in runs)


@pytest.mark.parametrize("name", ["ablations", "cpu-ablations"])
def test_the_ablations_are_the_arms_of_the_papers_table_in_its_order(name):
    with open(ROOT / "results" / "published" / "ablations.csv", newline="") as file:
        arms = [row["variant"] for row in csv.DictReader(file)]
    runs = read_plan(ROOT / "sweeps" / f"{name}.yaml").runs
    assert [run.variant for run in runs] == arms
    assert all(run.model.n_sublayers == 32 and run.train == runs[0].train for run in runs)
    assert len({str(run.residual) for run in runs}) == 12
