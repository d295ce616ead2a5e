"""A small corpus of real text (modules of the standard library) and the smallest model, shared by all tests."""

import os
from dataclasses import asdict, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import yaml
from hypothesis import settings
from library_corpus import write_corpus

from scaling.config import DataConfig, ExecutionConfig, ModelConfig, ResidualConfig, RunConfig, TrainConfig

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("fixed")

BLOCK = ResidualConfig("block", {"n_blocks": 3})


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> tuple[DataConfig, Path]:
    """A prepared corpus of about 150,000 tokens, and the data folder it is in."""
    from scaling.data.prepare import prepare

    folder = tmp_path_factory.mktemp("corpus")
    text = write_corpus(folder / "text.jsonl")
    config = DataConfig(name="library", train_files=[str(text)], vocab_size=512, validation_fraction=0.2)
    prepare(config, folder / "data", progress=False)
    return config, folder / "data"


@pytest.fixture
def tiny_run(corpus, tmp_path) -> RunConfig:
    """A run of 12 steps of a two-layer model: about a second."""
    data, folder = corpus
    return RunConfig(
        model=ModelConfig(name="tiny", n_layers=2, d_model=32, n_heads=1, d_ff=48),
        data=data,
        train=TrainConfig(
            seq_len=64, batch_tokens=512, tokens=512 * 12, validation_tokens=64 * 20, warmup_fraction=0.1
        ),
        residual=BLOCK,
        execution=ExecutionConfig(
            runs_folder=str(tmp_path / "runs"),
            data_folder=str(folder),
            accelerator="cpu",
            log_every=2,
            validate_every=4,
            checkpoint_every=4,
        ),
    )


@pytest.fixture
def change():
    """`change(run, "train", lr=...)`: a copy of a run with fields of one part replaced."""

    def _change(run: RunConfig, part: str, **values) -> RunConfig:
        return replace(run, **{part: replace(getattr(run, part), **values)})

    return _change


@pytest.fixture
def write_sweep(tmp_path):
    """`write_sweep(run, sizes=...)`: the file of a sweep of a run's size, as the baseline and as `block`.

    Sections that are given stand in place of those.
    """

    def _write_sweep(run: RunConfig, **sections) -> Path:
        values = asdict(run)
        sweep = {
            "name": "tiny",
            "sizes": [{"model": values["model"]}],
            "variants": {"baseline": {}, "block": values["residual"]},
            **{part: values[part] for part in ("data", "train", "execution")},
        }
        file = tmp_path / "tiny.yaml"
        file.write_text(yaml.safe_dump(sweep | sections))
        return file

    return _write_sweep
