"""What aggregating depth does to training: magnitudes, gradients and depth weights of every sublayer.

As in arXiv 2603.15031, figures 5 and 8. They are measured by a forward and a backward pass of their own, without
compilation, on tokens that are the same for every arm, micro-batch and number of devices. Training goes on as if it had
not been: the model that is probed is a shallow copy, which shares the weights and nothing else that changes, and no
parameter gets a gradient.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from scaling.config import RunConfig
from scaling.data.batches import ValidationBatches
from scaling.data.shards import TokenReader
from scaling.model.language_model import LanguageModel
from scaling.model.residual import ResidualScheme
from scaling.records import RunDirectory
from scaling.training.datamodule import TokenData
from scaling.training.module import TrainingModule
from scaling.training.recorder import Recorder

PROBE_TOKENS = 1024
"""In as many whole sequences, one if sequences are longer: means over a thousand tokens are steady to a few percent,
and no probe needs more memory than the smallest micro-batch of long sequences."""


def probe_tokens(reader: TokenReader, validation_tokens: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, T): the first windows of the validation split."""
    sequences = max(1, min(PROBE_TOKENS, validation_tokens) // reader.seq_len)
    return next(iter(ValidationBatches(reader, sequences * reader.seq_len, micro_batch=sequences)))


def measure(model: LanguageModel, inputs: Tensor, targets: Tensor) -> list[dict[str, Any]]:
    """One record a sublayer, of its `kind` and the measured columns of `DYNAMICS`, from tokens (B, T).

    Those of depth attention are None where the scheme has no depth weights.
    """
    observed = _Observed(model.residual)
    probe = copy.copy(model)
    vars(probe)["residual"] = observed
    loss = probe(inputs, targets)
    gradients = torch.autograd.grad(loss, observed.outputs)
    return [
        {
            "sublayer": i,
            "kind": "mlp" if i % 2 else "attention",
            "output_rms": _rms(output),
            "hidden_rms": observed.hidden_rms[i],
            "gradient_norm": _norm(gradient),
            **observed.mixing[i],
        }
        for i, (output, gradient) in enumerate(zip(observed.outputs, gradients, strict=True))
    ]


class Dynamics(pl.Callback):
    """Writes rows of dynamics.parquet before the first step, every `dynamics_every` steps, and after the last.

    Must come before the recorder, so that a row is there before the checkpoint of its step, after which nobody could
    measure it again. The first device's process measures; the others meet it at the next step.
    """

    def __init__(self, run: RunDirectory, config: RunConfig, data: TokenData, attempt: int, recorder: Recorder):
        assert config.execution.dynamics_every is not None
        self.run, self.config, self.attempt, self.recorder = run, config, attempt, recorder
        self.every = config.execution.dynamics_every
        self.tokens = probe_tokens(data.corpus.validation, config.train.validation_tokens)
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Measure the initial weights."""
        self._step = trainer.global_step
        if self._step == 0:
            self._write(trainer, module)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Measure once a step is complete, if it is due, outside the seconds of training."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if self._step % self.every == 0 or self._step == self.config.steps:
            assert isinstance(module, TrainingModule)
            module.grad_norm.item()  # waits for the device, whose work so far is training's
            with self.recorder.clock.paused():
                self._write(trainer, module)

    def _write(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(module, TrainingModule)
        inputs, targets = trainer.strategy.batch_to_device(self.tokens)
        with trainer.precision_plugin.train_step_context():
            records = measure(module.model, inputs, targets)
        at = {"attempt": self.attempt, "step": self._step, "tokens": self._step * self.config.train.batch_tokens}
        self.run.append_dynamics([at | record for record in records])


class _Observed:
    """A residual scheme that notes what passes through it. A read that is computed again is noted again, unchanged."""

    def __init__(self, scheme: ResidualScheme):
        self.scheme = scheme
        self.outputs: list[Tensor] = []
        self.hidden_rms: dict[int, float] = {}
        self.mixing: dict[int, dict[str, Any]] = {}

    def start(self, embedding: Tensor) -> Any:
        return self.scheme.start(embedding)

    def normed_read(self, state: Any, sublayer: int, norm: nn.RMSNorm) -> Tensor:
        with torch.no_grad():
            self.hidden_rms[sublayer] = _rms(self.scheme.read(state, sublayer))
            self.mixing[sublayer] = _mixing(self.scheme.read_weights(state, sublayer))
        return self.scheme.normed_read(state, sublayer, norm)

    def write(self, state: Any, sublayer: int, output: Tensor) -> Any:
        self.outputs.append(output)
        return self.scheme.write(state, sublayer, output)

    def finish(self, state: Any) -> Tensor:
        return self.scheme.finish(state)


def _mixing(weights: Tensor | None) -> dict[str, Any]:
    """The columns of depth attention, from weights (N, B, T)."""
    if weights is None:
        return dict.fromkeys(("entropy", "embedding_share", "predecessor_share", "weights"))
    wide = weights.double()
    shares = wide.mean((1, 2)).tolist()
    entropy = torch.special.entr(wide).sum(0).mean().item()
    return {"entropy": entropy, "embedding_share": shares[0], "predecessor_share": shares[-1], "weights": shares}


def _norm(x: Tensor) -> float:
    return cast(float, torch.linalg.vector_norm(x.detach(), dtype=torch.float64).item())


def _rms(x: Tensor) -> float:
    return _norm(x) / x.numel() ** 0.5
