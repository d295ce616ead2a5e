"""Sweep files to runs; every shipped file is planned."""

from pathlib import Path

import pytest
import yaml

from scaling.config import DataConfig
from scaling.errors import ConfigError
from scaling.loading import load
from scaling.sweep.plan import read_plan

ROOT = Path(__file__).parents[2]
SWEEP = {
    "name": "s",
    "data": {"name": "d", "vocab_size": 512},
    "train": {"seq_len": 64, "batch_tokens": 512, "tokens": 5120, "validation_tokens": 640},
    "sizes": [
        {"model": {"name": "a", "n_layers": 4, "d_model": 32, "n_heads": 1, "d_ff": 48}},
        {
            "model": {"name": "b", "n_layers": 4, "d_model": 64, "n_heads": 2, "d_ff": 96},
            "train": {"lr": 0.5},
            "execution": {"micro_batch": 2},
        },
    ],
    "variants": {"baseline": {"scheme": "baseline"}, "block": {"scheme": "block", "options": {"n_blocks": 2}}},
    "seeds": [0, 1],
}


def plan_of(tmp_path, values=SWEEP, **overrides):
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(values))
    return read_plan(file, overrides)


def problems_of(tmp_path, values, **overrides):
    with pytest.raises(ConfigError) as error:
        plan_of(tmp_path, values, **overrides)
    return error.value.problems


def test_sizes_times_variants_times_seeds(tmp_path):
    plan = plan_of(tmp_path)
    cells = [(r.model.name, r.variant, r.seed) for r in plan.runs]
    assert cells == [(m, v, s) for m in "ab" for v in ("baseline", "block") for s in (0, 1)]
    assert {r.train.lr for r in plan.runs if r.model.name == "b"} == {0.5}
    assert {r.execution.micro_batch for r in plan.runs} == {None, 2}
    assert plan.folder == Path("runs/s")
    assert {r.directory.path.parent for r in plan.runs} == {Path("runs/s")}


def test_arms_differ_in_the_scheme_only(tmp_path):
    by_cell = {}
    for run in plan_of(tmp_path).runs:
        identity = run.identity()
        identity.pop("residual")
        by_cell.setdefault((run.model.name, run.seed), []).append(identity)
    assert all(a == b for a, b in by_cell.values())


def test_overrides_reach_every_run(tmp_path):
    runs = plan_of(tmp_path, **{"train.lr": 0.25, "execution.runs_folder": "elsewhere", "data.train_files": ["x"]}).runs
    assert {r.train.lr for r in runs} == {0.25}
    assert {str(r.directory.path.parent) for r in runs} == {"elsewhere/s"}
    assert all(r.data.train_files == ["x"] for r in runs)


def test_problems_of_the_file_and_of_its_runs_are_reported_together(tmp_path):
    bad = {**SWEEP, "colour": 1, "seeds": []}
    assert {p.split()[0] for p in problems_of(tmp_path, bad)} == {"colour", "seeds"}

    bad = {**SWEEP, "variants": {**SWEEP["variants"], "deep": {"scheme": "block", "options": {"n_blocks": 99}}}}
    bad["train"] = {**SWEEP["train"], "lr": -1}
    bad["sizes"] = [SWEEP["sizes"][0], {**SWEEP["sizes"][1], "speed": 3}]
    problems = problems_of(tmp_path, bad)
    assert any(p.startswith("train.lr is -1") for p in problems)
    assert any(p.startswith("sizes.speed is not a setting") and "b" in p for p in problems)


def test_a_problem_of_one_arm_says_of_which(tmp_path):
    bad = {**SWEEP, "variants": {**SWEEP["variants"], "deep": {"scheme": "block", "options": {"n_blocks": 99}}}}
    assert problems_of(tmp_path, bad) == [
        "residual.options.n_blocks is 99: must be a whole number from 1 to 8, the model's sublayers (in deep a, deep b)"
    ]


def test_a_misspelt_variant_key_is_named(tmp_path):
    bad = {**SWEEP, "variants": {"block": {"scheme": "block", "n_blocks": 2}}}
    assert problems_of(tmp_path, bad) == ["variants.block.n_blocks is not a setting: there are scheme, options"]


def test_a_sweep_goes_by_its_files_name(tmp_path):
    assert "must be the file's own, 's'" in problems_of(tmp_path, {**SWEEP, "name": "other"})[0]


def test_the_same_run_twice_is_refused(tmp_path):
    twice = {**SWEEP, "sizes": [SWEEP["sizes"][0]] * 2}
    assert "mean the same run" in problems_of(tmp_path, twice)[0]


def test_a_size_without_a_model_is_named(tmp_path):
    assert any("model is None" in p for p in problems_of(tmp_path, {**SWEEP, "sizes": [{"train": {}}]}))


@pytest.mark.parametrize("value", [None, 3])
def test_a_part_of_a_size_that_is_not_keys_is_named(tmp_path, value):
    sizes = [{**SWEEP["sizes"][0], "train": value}, SWEEP["sizes"][1]]
    assert any(f"sizes.train is {value!r}" in p for p in problems_of(tmp_path, {**SWEEP, "sizes": sizes}))
    assert any("train is 3" in p for p in problems_of(tmp_path, {**SWEEP, "train": 3}))


@pytest.mark.parametrize("key", ["accelerator", "runs_folder"])
def test_what_a_whole_sweep_shares_cannot_differ_between_sizes(tmp_path, key):
    sizes = [{**SWEEP["sizes"][0], "execution": {key: "cpu"}}, SWEEP["sizes"][1]]
    assert any(f"sizes.execution.{key} cannot differ" in p for p in problems_of(tmp_path, {**SWEEP, "sizes": sizes}))


def test_sizes_may_need_different_numbers_of_devices(tmp_path):
    sizes = [{**SWEEP["sizes"][0], "execution": {"devices": 4}}, SWEEP["sizes"][1]]
    runs = plan_of(tmp_path, {**SWEEP, "sizes": sizes}).runs
    assert {(run.model.name, run.execution.devices) for run in runs} == {("a", 4), ("b", 1)}


@pytest.mark.parametrize("path", sorted(ROOT.glob("sweeps/*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_sweep_is_planned_and_says_what_it_is(path):
    plan = read_plan(path)
    assert plan.name == path.stem
    assert len(plan.runs) >= 2
    header = path.read_text().split("name:")[0]
    assert all(f"# {word}" in header for word in ("Shows:", "Cost:", "Run:"))


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/data/*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_corpus_is_read(path):
    assert load(DataConfig, path).name == path.stem
    assert path.read_text().startswith("#")


def test_the_demo_has_three_sizes_of_eight_layers_and_heads_of_32():
    runs = read_plan(ROOT / "sweeps/demo.yaml").runs
    models = {r.model for r in runs}
    assert len(models) >= 3
    assert all(m.n_layers >= 8 and m.head_dim >= 32 for m in models)
    assert {r.residual.scheme for r in runs} == {"baseline", "block"}
