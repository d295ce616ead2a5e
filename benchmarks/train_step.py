"""Training steps side by side: our arms and Hugging Face's Llama of the same shape, alternating in one process.

    python benchmarks/train_step.py [--model configs/model/cpu-8x64.yaml] [--rounds 12] [--eager]

Prints, for each contender, the median of its step's ratio to Llama's step of the same round, the ratio's quartiles,
and tokens per second. One step is forward, backward and fused AdamW on the same tokens in float32. Absolute numbers
depend on the machine and on what else it does; the ratios do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from scaling.config import ModelConfig, ResidualConfig
from scaling.data.batches import BatchOrder, TrainingBatches
from scaling.data.shards import TokenReader, load_index
from scaling.loading import load
from scaling.model.language_model import LanguageModel
from scaling.process import keep_heap
from scaling.training.environment import machine, versions

ARMS = {"baseline": ResidualConfig(), "block": ResidualConfig("block", {"n_blocks": 8}), "full": ResidualConfig("full")}


class Llama(nn.Module):
    """Hugging Face's implementation of the same shape, called like ours."""

    def __init__(self, config: ModelConfig, vocab_size: int, seq_len: int):
        super().__init__()
        self.llama = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab_size,
                hidden_size=config.d_model,
                intermediate_size=config.d_ff,
                num_hidden_layers=config.n_layers,
                num_attention_heads=config.n_heads,
                num_key_value_heads=config.n_kv_heads or config.n_heads,
                head_dim=config.head_dim,
                max_position_embeddings=seq_len,
                tie_word_embeddings=config.tied_head,
                attn_implementation="sdpa",
                use_cache=False,
            )
        )

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.llama(input_ids=tokens).logits
        return nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def contenders(config: ModelConfig, vocab_size: int, seq_len: int) -> dict[str, nn.Module]:
    models: dict[str, nn.Module] = {"Hugging Face Llama": Llama(config, vocab_size, seq_len)}
    for name, residual in ARMS.items():
        models[name] = LanguageModel(config, residual, vocab_size, seq_len)
    return models


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, targets: torch.Tensor) -> float:
    began = time.perf_counter()
    model(tokens, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - began


def loader_seconds(data: Path, seq_len: int, sequences: int, steps: int = 200) -> float | None:
    """Median seconds of one global batch from a prepared corpus, or None if there is none."""
    from scaling.config import DataConfig

    corpus = load(DataConfig, Path(__file__).parents[1] / "configs/data/python.yaml")
    if not (data / corpus.folder_name / "index.json").exists():
        return None
    reader = TokenReader(load_index(corpus, data), "train", seq_len)
    order = BatchOrder(reader.n_windows, seq_len, sequences, seed=0, allow_repeat=True)
    batches = iter(TrainingBatches(reader, order, steps, sequences))
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("configs/model/cpu-8x64.yaml"))
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--eager", action="store_true", help="leave the models uncompiled")
    parser.add_argument("--data-folder", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    given = parser.parse_args()

    keep_heap()
    console, config = Console(width=110), load(ModelConfig, given.model)
    torch.manual_seed(0)
    tokens, targets = torch.randint(given.vocab_size, (2, given.sequences, given.seq_len))
    models = contenders(config, given.vocab_size, given.seq_len)
    optimizers = {name: torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True) for name, m in models.items()}
    if not given.eager:
        for model in models.values():
            model.compile(dynamic=False)
    for name in track(models, "warming up", console=console):
        for _ in range(3):
            step(models[name], optimizers[name], tokens, targets)

    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in track(range(given.rounds), "measuring", console=console):
        for name in models:
            seconds[name].append(step(models[name], optimizers[name], tokens, targets))

    mode = "eager" if given.eager else "compiled"
    facts = machine()
    table = Table(
        "step of", "ratio to Llama's", "quartiles", "ratio to baseline's", "tokens/s",
        title=f"{config.name}, {given.sequences} x {given.seq_len} tokens, vocabulary {given.vocab_size}, {mode}, "
        f"{facts['threads']} threads, {facts['processor']}",
    )  # fmt: skip
    results = {}
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds["Hugging Face Llama"], strict=True)]
        to_baseline = [a / b for a, b in zip(times, seconds["baseline"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rate = tokens.numel() / statistics.median(times)
        results[name] = {
            "ratio_to_llama": middle,
            "quartiles": [low, high],
            "ratio_to_baseline": statistics.median(to_baseline),
            "tokens_per_second": rate,
        }
        table.add_row(
            name, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{statistics.median(to_baseline):.3f}", f"{rate:,.0f}"
        )
    console.print(table)

    loading = loader_seconds(given.data_folder, given.seq_len, given.sequences)
    if loading is None:
        console.print("data loader: not measured, the corpus is not prepared (make demo prepares it)")
    else:
        share = loading / statistics.median(seconds["baseline"])
        results["loader_share_of_step"] = share
        console.print(f"data loader: {share:.2%} of a baseline step ({1e3 * loading:.2f} ms a batch)")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(
            json.dumps({"mode": mode, "machine": facts, "versions": versions(), **results}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
