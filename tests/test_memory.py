"""The counted memory of a step against what the allocator hands out, and the process holds, in a real one."""

import gc
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from scaling.errors import ScalingError
from scaling.memory import PARTS, training_memory
from scaling.model.language_model import LanguageModel
from scaling.model.residual import SCHEMES
from scaling.model.residual.baseline import Baseline
from scaling.training.module import TrainingModule
from scaling.training.optimizer import build_optimizer


def allocated_by_the_trainer(run):
    """The most bytes that PyTorch's allocator had handed out at once in two real steps, the model's included."""
    n = run.batch_sequences // run.micro_batch
    tokens = torch.zeros(run.micro_batch, run.train.seq_len, dtype=torch.long)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=2,
        accumulate_grad_batches=n,
        precision="bf16-mixed" if run.train.precision == "bf16" else "32-true",
        barebones=True,
    )
    gc.collect()  # what is freed below but was made before would be taken off
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        module = TrainingModule(run)
        module.model.checkpoint_activations = run.execution.checkpoint_activations
        trainer.fit(module, DataLoader([(tokens, tokens)] * 2 * n, batch_size=None))
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest


@pytest.fixture
def run_of(tiny_run, change):
    """`run_of("block", "bf16", checkpointed=True)`: a few MiB, most of them activations."""

    def _run_of(scheme="block", precision="float32", *, checkpointed=False, micro_batch=None, optimizer="adamw"):
        run = change(tiny_run, "model", n_layers=4, d_model=64, d_ff=176)
        run = change(run, "train", precision=precision, optimizer=optimizer)
        options = {"n_blocks": 3} if scheme == "block" else {}
        run = change(run, "residual", scheme=scheme, options=options)
        return change(run, "execution", checkpoint_activations=checkpointed, micro_batch=micro_batch)

    return _run_of


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("scheme", ["baseline", "block", "full"])
def test_the_peak_is_what_the_allocator_hands_out_at_most(run_of, scheme, precision, checkpointed):
    run = run_of(scheme, precision, checkpointed=checkpointed)
    assert sum(training_memory(run).values()) == pytest.approx(allocated_by_the_trainer(run), rel=0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_peak_of_a_step_of_several_micro_batches(run_of, optimizer):
    run = run_of(micro_batch=4, optimizer=optimizer)
    assert sum(training_memory(run).values()) == pytest.approx(allocated_by_the_trainer(run), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["narrow", "wide", "deep", "words"])
def test_the_peak_is_what_a_process_holds_at_most(size):
    """Hundreds of MiB: resident memory of a real process, every scheme, precision, with and without checkpointing."""
    script = Path(__file__).parents[1] / "benchmarks" / "memory_estimate.py"
    done = subprocess.run([sys.executable, str(script), "--sizes", size], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weights_gradients_and_moments_are_those_of_a_real_step(run_of, optimizer):
    run = run_of(optimizer=optimizer, micro_batch=4)
    model = LanguageModel(run.model, run.residual, run.data.vocab_size, run.train.seq_len)
    built = build_optimizer(model, run.train)
    tokens = torch.zeros(2, run.train.seq_len, dtype=torch.long)
    model(tokens, tokens).backward()
    built.step()
    parts = list(built.parts.values()) if optimizer == "muon" else [built]
    state = sum(t.nbytes for part in parts for s in part.state.values() for t in s.values() if torch.is_tensor(t))
    memory = training_memory(run)
    assert tuple(memory) == PARTS
    assert memory["weights"] == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert memory["gradients"] == sum(p.grad.nbytes for p in model.parameters())
    assert memory["optimizer"] == state


def test_memory_grows_with_the_micro_batch_in_what_is_not_the_models(run_of):
    small, large = (training_memory(run_of(micro_batch=m)) for m in (1, 4))
    assert large["activations"] == pytest.approx(4 * small["activations"], rel=0.05)
    for part in ("weights", "gradients", "optimizer"):
        assert small[part] == large[part]


def test_checkpointing_keeps_less_and_block_and_full_keep_their_sources(run_of):
    kept = {
        scheme: training_memory(run_of(scheme, checkpointed=True))["activations"] for scheme in ("baseline", "full")
    }
    assert kept["baseline"] < kept["full"] < 0.5 * training_memory(run_of("full"))["activations"]


def test_several_devices_share_weights_gradients_and_optimiser_only_where_they_are_sharded(run_of, change):
    run = change(run_of(micro_batch=2), "execution", devices=2)
    whole, shared = (training_memory(change(run, "execution", strategy=s)) for s in ("ddp", "fsdp"))
    for part in ("weights", "gradients", "optimizer"):
        assert shared[part] == pytest.approx(whole[part] / 2, rel=0.01)
    assert shared["activations"] == whole["activations"]
    assert whole["temporaries"] < shared["temporaries"] < whole["temporaries"] + whole["weights"]


def test_a_scheme_that_looks_at_values_is_named(run_of, change, monkeypatch):
    monkeypatch.setattr("scaling.model.residual.scheme.SCHEMES", dict(SCHEMES))

    class Peeking(Baseline, name="peeking"):
        def write(self, state, sublayer, output):
            return state + output if output.sum().item() > 0 else state

    with pytest.raises(
        ScalingError, match=r"memory of block-tiny-s0-\w+ cannot be counted \(.*needs values of tensors"
    ):
        training_memory(change(run_of(), "residual", scheme="peeking", options={}))
