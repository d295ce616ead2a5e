"""Activation checkpointing: the same bits, for a fraction of what is kept."""

import shutil

import pytest
import torch
from rich.console import Console

from scaling.config import ModelConfig, ResidualConfig
from scaling.memory import saved_bytes
from scaling.model.language_model import LanguageModel
from scaling.training.run import train

SCHEMES = {"baseline": {}, "block": {"n_blocks": 4}, "full": {}}
LEAST_FACTOR = 3.5
BATCH = torch.randint(512, (2, 4, 128), generator=torch.Generator().manual_seed(0))


def pair_of(scheme):
    """The same model twice, the second with its activations computed again."""
    shape = ModelConfig(name="m", n_layers=8, d_model=64, n_heads=2, d_ff=176)
    models = [LanguageModel(shape, ResidualConfig(scheme, SCHEMES[scheme]), 512, 128) for _ in range(2)]
    models[1].checkpoint_activations = True
    return models


def bits_of(model, precision=torch.float32):
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        loss = model(*BATCH)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_loss_and_gradients_are_the_same_bits(scheme, precision):
    kept, recomputed = (bits_of(model, precision) for model in pair_of(scheme))
    assert all(torch.equal(a, b) for a, b in zip(kept, recomputed, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_the_residual_state_of_a_sublayer_is_kept(scheme):
    kept, recomputed = (saved_bytes(model, *BATCH) for model in pair_of(scheme))
    assert kept > LEAST_FACTOR * recomputed


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_sublayer_more_keeps_two_tensors_of_the_stream_at_most(scheme):
    """The read, the open block's sum and logits; of the sublayer itself, whose MLP alone is 5.5 wide, nothing."""
    sizes = []
    for layers in (8, 16):
        shape = ModelConfig(name="m", n_layers=layers, d_model=64, n_heads=2, d_ff=176)
        model = LanguageModel(shape, ResidualConfig(scheme, SCHEMES[scheme]), 512, 128)
        model.checkpoint_activations = True
        sizes.append(saved_bytes(model, *BATCH))
    stream = 4 * 128 * 64 * 4
    assert (sizes[1] - sizes[0]) / 16 < 2.5 * stream


def test_a_run_is_the_same_run(tiny_run, change, tmp_path):
    runs = [
        change(tiny_run, "execution", runs_folder=str(tmp_path / str(on)), checkpoint_activations=on)
        for on in (False, True)
    ]
    for run in runs:
        train(run, Console(quiet=True))
    files = [(run.directory.path / "result.json").read_bytes() for run in runs]
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_compiled_it_is_computed_again_too(scheme):
    eager, compiled = pair_of(scheme)
    expected = bits_of(eager)
    compiled.compile(dynamic=False)
    for ours, theirs in zip(bits_of(compiled), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert saved_bytes(eager, *BATCH) > LEAST_FACTOR * saved_bytes(compiled, *BATCH)
