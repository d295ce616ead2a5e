"""Settings: every problem of a file at once, and an identity that covers what decides the result."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.config import DataConfig, ExecutionConfig, ModelConfig, ResidualConfig, RunConfig, TrainConfig
from scaling.errors import ConfigError
from scaling.loading import build, load, override

MODEL = {"name": "m", "n_layers": 4, "d_model": 64, "n_heads": 2, "d_ff": 96}
RUN = {
    "model": MODEL,
    "data": {"name": "d", "vocab_size": 512},
    "train": {"seq_len": 64, "batch_tokens": 512, "tokens": 5120, "validation_tokens": 640},
}


def problems_of(values, cls=RunConfig):
    with pytest.raises(ConfigError) as error:
        build(cls, values, where="file.yaml")
    return error.value.problems


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model.n_layer", 3, "model.n_layer is not a setting: there are name, n_layers"),
        ("model.n_layers", "many", "model.n_layers is 'many': must be a whole number"),
        ("model.n_layers", 1.5, "model.n_layers is 1.5: must be a whole number"),
        ("model.n_layers", True, "model.n_layers is True: must be a whole number"),
        ("model.n_layers", None, "model.n_layers is None: must be a whole number"),
        ("model.n_layers", 0, "model.n_layers is 0: must be at least 1"),
        ("model.d_model", 10**30, "must be at least 1 and at most 1000000"),
        ("train.lr", float("inf"), "train.lr is inf: must be a finite number"),
        ("train.tokens", float("nan"), "train.tokens is nan: must be a finite number"),
        ("train.clip_norm", 0, "train.clip_norm is 0.0: must be greater than 0, or null"),
        ("model.head_dim", 33, "model.head_dim is 33: must be even"),
        ("model.n_kv_heads", 3, "n_kv_heads must divide n_heads"),
        ("model.name", "a/b", "model.name is 'a/b': must be letters"),
        ("residual.scheme", "blok", "residual.scheme is 'blok': must be one of baseline, block, denseformer, full"),
        ("residual", {"scheme": "block", "options": {"n_blocks": 0}}, "residual.options.n_blocks is 0: must be"),
        ("data.vocab_size", 70, "data.vocab_size is 70: must be from 257"),
        ("data.vocab_size", 2**33, "(what a uint32 shard holds)"),
        ("train.lr", -1e-3, "train.lr is -0.001: must be greater than 0"),
        ("train.schedule", "linear", "train.schedule is 'linear': must be one of cosine, wsd"),
        ("train.batch_tokens", 500, "batch_tokens must be a multiple of seq_len"),
        ("train.tokens_per_parameter", 20, "give exactly one of the two"),
        ("train.betas", [0.9], "train.betas is [0.9]: must be a list of 2"),
        ("train.betas", [0.9, 1.0], "must be two numbers from 0 to below 1"),
        ("execution.micro_batch", 3, "execution.micro_batch is 3: must divide the 8 sequences"),
        ("execution.devices", 3, "execution.devices is 3: must divide the 8 sequences"),
        ("execution.dynamics_every", 15, "dynamics_every must be a multiple of log_every, or left out"),
        ("execution.dynamics_every", 0, "dynamics_every must be a multiple of log_every, or left out"),
        ("execution.validate_every", 15, "validate_every must be a multiple of log_every"),
        ("seed", -1, "seed is -1: must be at least 0"),
        ("variant", "../x", "variant is '../x': must be letters"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(key, value, expected):
    problems = problems_of(override(RUN, {key: value}))
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"n_blocks": 9}, "must be a whole number from 1 to 8"),
        ({"n_blocks": "x"}, "must be a whole number from 1 to 8"),
        ({"block_size": True}, "must be a whole number from 1 to 8"),
        ({"n_blocks": 2, "block_size": 2}, "give one of the two"),
        ({"blocks": 2}, "residual.options.blocks is not an option of block: it has n_blocks, block_size"),
    ],
)
def test_a_bad_option_of_a_scheme_is_named(options, expected):
    values = override(RUN, {"residual.scheme": "block", "residual.options": options})
    assert any(expected in p for p in problems_of(values))


@pytest.mark.parametrize("key", ["train.seq_len", "execution.log_every"])
def test_a_zero_that_others_are_divided_by(key):
    problems = problems_of(override(RUN, {key: 0}))
    assert any(p.startswith(f"{key} is 0: must be at least") for p in problems)


def test_the_next_smaller_micro_batch_divides_the_batch(change):
    run = change(RUN_CONFIG, "train", batch_tokens=64 * 12, tokens=64 * 120.0)
    sizes = []
    while run is not None:
        sizes.append(run.micro_batch)
        smaller = run.smaller_micro_batch
        run = change(run, "execution", micro_batch=smaller) if smaller else None
    assert sizes == [12, 6, 3, 1]


def test_all_errors_of_a_file_are_reported_together(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {name: m, n_layers: 0, d_model: wide, n_heads: 2, head_dim: 31, colour: red}\n"
        "data: {name: d, vocab_size: 3}\n"
        "train: {seq_len: 64, batch_tokens: 100, tokens: 1e6, lr: -1}\n"
        "speed: 3\n"
    )
    with pytest.raises(ConfigError) as error:
        load(RunConfig, file)
    named = ["speed", "n_layers", "d_model", "head_dim", "colour", "d_ff", "vocab_size", "batch_tokens", "lr"]
    assert len(error.value.problems) == len(named)
    assert all(any(key in p.split(":")[0] for p in error.value.problems) for key in named)
    assert all(line.startswith(f"{file}: ") for line in str(error.value).splitlines())


def test_rules_hold_for_objects_built_in_python_too():
    with pytest.raises(ConfigError, match=r"n_layers is 0[\s\S]*d_ff is 'x'"):
        ModelConfig(name="m", n_layers=0, d_model=8, n_heads=1, d_ff="x")


@pytest.mark.parametrize("text", ["- a\n- b\n", "", "a: [1\n", "\x00"])
def test_a_file_that_is_not_keys_and_values(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml"):
        load(RunConfig, tmp_path / "x.yaml")


def test_a_missing_file_and_a_missing_nested_file(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load(RunConfig, tmp_path / "none.yaml")
    (tmp_path / "x.yaml").write_text("model: none.yaml\n")
    with pytest.raises(ConfigError, match=r"none\.yaml does not exist"):
        load(RunConfig, tmp_path / "x.yaml")


def test_overrides_replace_what_the_file_says(tmp_path):
    (tmp_path / "m.yaml").write_text("name: m\nn_layers: 4\nd_model: 64\nn_heads: 2\nd_ff: 96\n")
    (tmp_path / "x.yaml").write_text(
        "model: m.yaml\ndata: {name: d}\ntrain: {seq_len: 64, batch_tokens: 512, tokens: 1e4}\n"
    )
    run = load(RunConfig, tmp_path / "x.yaml", {"model.n_layers": 6, "train.lr": 0.5, "train.validation_tokens": 640})
    assert (run.model.n_layers, run.train.lr, run.model.d_model) == (6, 0.5, 64)


# --- identity


RUN_CONFIG = build(RunConfig, RUN)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("execution", {"micro_batch": 4}),
        ("execution", {"compile": True}),
        ("execution", {"workers": 2}),
        ("execution", {"devices": 2}),
        ("execution", {"accelerator": "cpu"}),
        ("execution", {"runs_folder": "elsewhere"}),
        ("execution", {"log_every": 5}),
        ("execution", {"dynamics_every": 10}),
        ("data", {"train_files": ["moved.jsonl"]}),
    ],
)
def test_what_does_not_decide_the_result_is_not_in_the_name(change, part, values):
    """T6."""
    assert change(RUN_CONFIG, part, **values).run_name == RUN_CONFIG.run_name


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("model", {"n_layers": 6}),
        ("model", {"norm_eps": 1e-5}),
        ("residual", {"scheme": "full"}),
        ("data", {"vocab_size": 600}),
        ("train", {"lr": 1e-3}),
        ("train", {"tokens": 10240.0}),
        ("train", {"schedule": "wsd"}),
        ("train", {"precision": "bf16"}),
    ],
)
def test_what_decides_the_result_is_in_the_name(change, part, values):
    """A4, T6."""
    assert change(RUN_CONFIG, part, **values).run_name.split("-")[-1] != RUN_CONFIG.run_name.split("-")[-1]
    assert replace(RUN_CONFIG, seed=1).run_name != RUN_CONFIG.run_name


def test_equal_settings_have_one_name_however_they_are_written():
    written = [override(RUN, {"train.tokens": t}) for t in (5120, 5120.0, "5120", "5.12e3")]
    assert len({build(RunConfig, values).run_name for values in written}) == 1


@given(st.floats(0.5, 200), st.sampled_from(["block", "full"]))
def test_arms_of_a_size_train_on_the_same_tokens(tokens_per_parameter, scheme):
    train = TrainConfig(seq_len=64, batch_tokens=512, tokens_per_parameter=tokens_per_parameter, validation_tokens=640)
    runs = [
        RunConfig(ModelConfig(**MODEL), DataConfig("d", vocab_size=512), train, ResidualConfig(s))
        for s in ("baseline", scheme)
    ]
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].tokens % 512 == 0


def test_the_global_batch_does_not_depend_on_micro_batch_or_devices(change):
    for values in ({"micro_batch": 1}, {"micro_batch": 8}, {"devices": 4}, {"devices": 2, "micro_batch": 2}):
        run = change(RUN_CONFIG, "execution", **values)
        assert run.batch_sequences == 8
        assert 8 % (run.micro_batch * run.execution.devices) == 0


def test_execution_settings_are_documented():
    from scaling.loading import docstrings

    for cls in (ModelConfig, DataConfig, TrainConfig, ExecutionConfig, RunConfig, ResidualConfig):
        assert set(docstrings(cls)) == {field.name for field in fields(cls)}
        assert all(docstrings(cls).values())
