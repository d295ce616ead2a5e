"""The counted memory of a step against what a real step keeps."""

import pytest
import torch

from scaling.memory import saved_bytes, training_memory
from scaling.model.language_model import LanguageModel
from scaling.training.optimizer import build_optimizer


@pytest.mark.parametrize("scheme", ["baseline", "block", "full"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_activations_are_those_of_a_real_forward_pass(tiny_run, change, scheme, precision):
    options = {"n_blocks": 2} if scheme == "block" else {}
    run = change(change(tiny_run, "train", precision=precision), "residual", scheme=scheme, options=options)
    model = LanguageModel(run.model, run.residual, run.data.vocab_size, run.train.seq_len)
    tokens = torch.zeros(run.micro_batch, run.train.seq_len, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        real = saved_bytes(model, tokens, tokens)
    assert training_memory(run)["activations"] == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weights_gradients_and_moments_are_those_of_a_real_step(tiny_run, change, optimizer):
    run = change(tiny_run, "train", optimizer=optimizer)
    model = LanguageModel(run.model, run.residual, run.data.vocab_size, run.train.seq_len)
    built = build_optimizer(model, run.train)
    tokens = torch.zeros(2, run.train.seq_len, dtype=torch.long)
    model(tokens, tokens).backward()
    built.step()
    parts = list(built.parts.values()) if optimizer == "muon" else [built]
    moments = sum(
        t.nbytes for part in parts for s in part.state.values() for t in s.values() if torch.is_tensor(t) and t.ndim
    )
    memory = training_memory(run)
    assert memory["weights"] == sum(p.nbytes for p in model.parameters())
    assert memory["gradients"] == sum(p.grad.nbytes for p in model.parameters())
    assert memory["optimizer"] == moments


def test_memory_grows_with_the_micro_batch_in_activations_only(tiny_run, change):
    small, large = (training_memory(change(tiny_run, "execution", micro_batch=m)) for m in (2, 8))
    assert large["activations"] == pytest.approx(4 * small["activations"], rel=0.05)
    assert {k: v for k, v in small.items() if k != "activations"} == {
        k: v for k, v in large.items() if k != "activations"
    }
