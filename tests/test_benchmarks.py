"""What the benchmarks compare is comparable, and the script for the GPU runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def contenders(monkeypatch):
    from scaling.model.residual import SCHEMES

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr("scaling.model.residual.scheme.SCHEMES", dict(SCHEMES))
    monkeypatch.delitem(sys.modules, "contenders", raising=False)
    import contenders

    return contenders


def tiny(contenders):
    return contenders._shape("tiny", 4, 32, 2, 16, 48, 64, 2, 12)


def test_the_textbook_stack_computes_what_block_does(contenders):
    shape = tiny(contenders)
    models = [contenders.CONTENDERS[name](shape).double() for name in ("block", "textbook block")]
    losses = []
    for model in models:
        with torch.no_grad():
            model.residual.queries.copy_(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)))
        losses.append(model(*contenders.batch(shape)))
        losses[-1].backward()
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(*(m.embedding.weight.grad for m in models), rtol=1e-8, atol=1e-11)


def test_llama_has_the_baselines_parameters(contenders):
    shape = tiny(contenders)
    counts = {
        name: sum(p.numel() for p in contenders.CONTENDERS[name](shape).parameters())
        for name in ("baseline", "Hugging Face Llama")
    }
    assert counts["baseline"] == counts["Hugging Face Llama"]


def test_flops_of_a_step_are_those_that_pytorch_counts(contenders):
    from torch.utils.flop_counter import FlopCounterMode

    shape = tiny(contenders)
    with torch.device("meta"):
        model = contenders.CONTENDERS["baseline"](shape)
    tokens, targets = (t.to("meta") for t in contenders.batch(shape))
    with FlopCounterMode(display=False) as counter:
        model(tokens, targets).backward()
    counted, m = counter.get_total_flops(), shape.model
    scores = 2 * 2 * m.n_heads * m.head_dim * m.n_layers * shape.sequences * shape.seq_len  # per key
    # Ours: half of the keys, forward once and backward twice. PyTorch's: all keys, and scores again in the backward.
    ours_in_full = shape.flops - 3 * scores * (shape.seq_len + 1) / 2
    assert counted - ours_in_full in (3 * scores * shape.seq_len, 3.5 * scores * shape.seq_len)


@pytest.mark.slow
def test_the_script_for_the_gpu_runs_at_toy_sizes(tmp_path):
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--smoke", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert all(row["deviation"] <= row["allowed"] for row in result["equality"].values())
    assert set(result["steps"]["toy"]) == {"baseline", "block", "full"}
