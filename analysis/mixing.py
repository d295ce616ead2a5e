"""The depth mixing matrix of a trained run: what every read makes of the embedding and of each output before it.

The one part of the analysis that runs a model, and so needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.errors import TableError

TOKENS = 256


@dataclass(frozen=True)
class Mixing:
    """M of a run, rows its reads (the last one the final read), columns the embedding and the outputs."""

    run: str
    variant: str
    mean: np.ndarray
    """(L + 1, L + 1), averaged over tokens and, where a scheme weighs groups of channels apart, over these."""
    sd: np.ndarray
    """(L + 1, L + 1), standard deviation over the same."""
    ranks: np.ndarray
    """(B T G,) semiseparable rank of each of these matrices."""


def mixing_of_run(folder: Path, text: str | None = None) -> Mixing:
    """Load a run's newest checkpoint and solve for M on a text, or on the first tokens of its validation split.

    Raises:
        TableError: the folder holds no trained run, torch is not installed, or the text is empty.
        ScalingError: the run's files or its corpus are damaged, or its scheme has no such matrix.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise TableError("a mixing matrix is of a model, and a model needs torch: pip install torch") from None
    from scaling.config import RunConfig
    from scaling.data.corpus import open_corpus
    from scaling.data.tokenizer import PublishedTokenizer, TrainedTokenizer
    from scaling.loading import build
    from scaling.model.depth_mixing import mixing_matrix, semiseparable_rank
    from scaling.model.language_model import LanguageModel
    from scaling.records import RunDirectory
    from scaling.training.checkpoint import is_whole

    run = RunDirectory(folder)
    config = build(RunConfig, run.read_config(), where=str(folder))
    if not (run.last_checkpoint.exists() and is_whole(run.last_checkpoint)):
        raise TableError(f"{run.last_checkpoint} is missing or damaged: train the run first")
    corpus, data = open_corpus(config), config.data
    if text is None:
        ids = corpus.validation.windows([0])[0]
    else:
        folder = corpus.index.folder
        named = PublishedTokenizer(str(folder), data.vocab_size) if data.tokenizer else TrainedTokenizer.load(folder)
        ids = named.encode([text])[0].astype(np.int64)
        if not len(ids):
            raise TableError("--text is empty: give some words, or leave it out for the validation text")
    model = LanguageModel(config.model, config.residual, data.vocab_size, config.train.seq_len)
    weights = torch.load(run.last_checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
    tokens = torch.from_numpy(ids[: min(TOKENS, config.train.seq_len)]).unsqueeze(0)
    matrices = mixing_matrix(model, tokens).flatten(0, 2)
    deviation = matrices.std(0, correction=0).numpy()
    return Mixing(run.name, config.variant, matrices.mean(0).numpy(), deviation, semiseparable_rank(matrices).numpy())


def mixing_text(mixing: Mixing) -> str:
    """mixing.csv: a row for each read and each value it can be made of."""
    lines = ["run,read,value,mean,sd"]
    for read, row in enumerate(mixing.mean):
        lines += [f"{mixing.run},{read},{i},{row[i]:.9g},{mixing.sd[read, i]:.9g}" for i in range(read + 1)]
    return "\n".join(lines) + "\n"


def summary(mixing: Mixing) -> str:
    """What the matrix says in a line or two."""
    last = len(mixing.mean) - 1
    moved = mixing.sd[np.tril_indices(last + 1)].max()
    return (
        f"{mixing.run}: {last} sublayers, {len(mixing.ranks)} tokens\n"
        f"semiseparable rank {np.median(mixing.ranks):.0f} (from {mixing.ranks.min()} to {mixing.ranks.max()} over "
        f"tokens) of at most {(last + 2) // 2}\n"
        f"rows sum to {mixing.mean.sum(1).min():.3g} to {mixing.mean.sum(1).max():.3g}; weights differ between tokens "
        f"by a standard deviation of {moved:.2g} at most"
    )
