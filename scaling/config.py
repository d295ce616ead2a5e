"""Every setting and its default, checked when it is built. Reading them from files is `loading.py`'s job.

What decides a run's result is in `model`, `residual`, `data`, `train` and `seed`; what does not is in
`execution` and stays out of the run's identity.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from scaling.compute import DenseShape, KimiShape, ModelShape, non_embedding_parameters
from scaling.errors import ConfigError
from scaling.records import RunDirectory
from scaling.rules import Checked, Rule, at_least, each, named, positive


@dataclass(frozen=True)
class KimiConfig(Checked):
    """What makes a model Kimi Linear (arXiv 2510.26692): KDA and MLA in turn, each followed by a mixture of experts."""

    n_experts: int = 64
    """E, routed experts of a layer, each a SwiGLU of width d_ff."""
    experts_per_token: int = 8
    """Routed experts that a token goes through."""
    n_shared_experts: int = 1
    """Experts that every token goes through, as one SwiGLU of their widths together."""
    mla_every: int = 4
    """The attention of every so many-th layer, and of the last, is MLA; of the others KDA."""
    kv_rank: int = 512
    """Width of MLA's compressed keys and values."""
    conv_size: int = 4
    """Tokens that KDA's short convolutions see."""
    routed_scale: float = 2.446
    """Factor on the sum of a token's routed experts, whose weights sum to 1."""
    balance_loss: float = 1e-4
    """Weight of the loss that asks for equal use of the experts within each sequence; part of the gradient, not of
    any loss that is recorded."""
    balance_rate: float = 1e-3
    """How much a step raises the choice of an expert that its global batch used too little, and lowers the others'."""

    rules = (
        *at_least(1, "n_experts", "experts_per_token", "n_shared_experts", "mla_every", "kv_rank", "conv_size"),
        *at_least(0, "balance_loss", "balance_rate"),
        *positive("routed_scale"),
        Rule(
            ("experts_per_token", "n_experts"),
            lambda c: c.experts_per_token <= c.n_experts,
            "experts_per_token must not exceed n_experts",
        ),
    )


@dataclass(frozen=True)
class ModelConfig(Checked):
    """Shape of the decoder. Parameters and FLOPs follow from it (`compute.py`)."""

    name: str
    """Name of the size, part of every run's name."""
    n_layers: int
    """Transformer layers; each is two sublayers, attention and MLP."""
    d_model: int
    """Width of the residual stream."""
    n_heads: int
    """Query heads."""
    d_ff: int
    """Width of the SwiGLU MLP, or of one expert."""
    head_dim: int = 32
    """Width of a head, independent of d_model; even, because rotary embeddings turn pairs."""
    n_kv_heads: int | None = None
    """Key and value heads; n_heads if not given (full attention), a divisor of it for grouped attention."""
    tied_head: bool = True
    """Whether the output head shares the embedding's weights."""
    rope_theta: float = 10_000.0
    """Base of the rotary embedding's wavelengths."""
    norm_eps: float = 1e-10
    """Added to the mean square in every RMSNorm. Averaging k sources divides the stream by k, so this has to stay
    far below (embedding deviation / k)^2 for the arms to agree before training."""
    kimi: KimiConfig | None = None
    """Makes the backbone Kimi Linear, which has no positions and no grouped heads; a dense Transformer if not given."""

    rules = (
        *named("name"),
        *each(
            ("n_layers", "d_model", "n_heads", "d_ff"),
            lambda value: 1 <= value <= 1_000_000,
            "must be at least 1 and at most 1000000",
        ),
        Rule(
            ("head_dim",),
            lambda c: c.head_dim >= 2 and c.head_dim % 2 == 0,
            "must be even and at least 2, because rotary embeddings turn pairs",
        ),
        Rule(
            ("n_kv_heads", "n_heads"),
            lambda c: c.n_kv_heads is None or (c.n_kv_heads >= 1 and c.n_heads % c.n_kv_heads == 0),
            "n_kv_heads must divide n_heads",
        ),
        Rule(
            ("kimi", "n_kv_heads"),
            lambda c: c.kimi is None or c.n_kv_heads is None,
            "Kimi Linear has no grouped heads; leave n_kv_heads out",
        ),
        *positive("rope_theta", "norm_eps"),
    )

    @property
    def n_sublayers(self) -> int:
        """L, the number of sublayers (arXiv 2603.15031: each attention and each MLP counts as one)."""
        return 2 * self.n_layers

    def is_mla(self, layer: int) -> bool:
        """Of Kimi Linear: whether the attention of Transformer layer 0 .. n_layers - 1 is MLA rather than KDA."""
        assert self.kimi is not None
        return (layer + 1) % self.kimi.mla_every == 0 or layer == self.n_layers - 1

    @property
    def shared_key_dim(self) -> int:
        """Of Kimi Linear: width of the part of MLA's keys that all heads share, half a head as in the 48B model."""
        return self.head_dim // 2

    def shape(self, residual: ResidualConfig, vocab_size: int, seq_len: int) -> ModelShape:
        """What parameters and FLOPs are counted from."""
        from scaling.model.residual import build_scheme

        scheme = build_scheme(residual, self.n_sublayers, self.d_model, self.norm_eps, device="meta")
        common: dict[str, Any] = {
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "n_heads": self.n_heads,
            "head_dim": self.head_dim,
            "d_ff": self.d_ff,
            "vocab_size": vocab_size,
            "tied_head": self.tied_head,
            "seq_len": seq_len,
            "residual_parameters": scheme.n_parameters,
            "residual_flops": scheme.flops_per_token,
        }
        if self.kimi is None:
            return DenseShape(**common, n_kv_heads=self.n_kv_heads or self.n_heads)
        return KimiShape(
            **common,
            n_mla_layers=sum(map(self.is_mla, range(self.n_layers))),
            shared_key_dim=self.shared_key_dim,
            kv_rank=self.kimi.kv_rank,
            conv_size=self.kimi.conv_size,
            n_experts=self.kimi.n_experts,
            experts_per_token=self.kimi.experts_per_token,
            n_shared_experts=self.kimi.n_shared_experts,
        )


@dataclass(frozen=True)
class ResidualConfig(Checked):
    """Which residual scheme, the independent variable, and its own options."""

    scheme: str = "baseline"
    """Name of a registered scheme: baseline, block, full, highway, denseformer, hyper_connections, mhc, mhc_lite, or
    one of yours."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of that scheme, for example {n_blocks: 8} or {block_size: 4} (in sublayers) for block. AttnRes's
    ablations are options of block and full: query, mixing, activation, key_norm, n_heads, and full's window."""


@dataclass(frozen=True)
class DataConfig(Checked):
    """A corpus: where its text is and how it becomes tokens."""

    name: str
    """Name of the corpus; its shards lie in <data folder>/<name>-<hash of the settings>."""
    source: Literal["python", "files", "hub"] = "files"
    """`python` is the standard library's own source text, `files` local files, `hub` a Hugging Face dataset."""
    train_files: list[str] = field(default_factory=list)
    """For `files`: json, jsonl, parquet or text files or globs, also compressed with xz, gz or zst."""
    validation_files: list[str] = field(default_factory=list)
    """For `files`: held-out files; if there are none, documents are held out of train_files."""
    hub_path: str = ""
    """For `hub`: owner/name of the dataset."""
    hub_config: str | None = None
    """For `hub`: configuration, for example sample-100BT."""
    hub_revision: str | None = None
    """For `hub`: commit or tag, so that the text stays the same."""
    text_field: str = "text"
    """Column that holds the text of a document."""
    validation_fraction: float = 0.01
    """Share of documents held out, chosen by the hash of their text, where no validation files are given."""
    max_train_tokens: int | None = None
    """Stop after this many training tokens; the whole corpus if not given."""
    tokenizer: str | None = None
    """Published tokenizer, by hub name or folder; a byte-level BPE is trained on the corpus if not given."""
    vocab_size: int = 4096
    """Entries of the vocabulary: what the BPE is trained to, or at least the published tokenizer's."""
    bpe_bytes: int = 20_000_000
    """Bytes of training text the BPE is trained on."""

    rules = (
        *named("name"),
        Rule(
            ("source", "hub_path"),
            lambda c: c.source != "hub" or bool(c.hub_path),
            "source hub needs hub_path, the dataset's owner/name",
        ),
        Rule(
            ("source", "train_files", "validation_files"),
            lambda c: c.source == "files" or not (c.train_files or c.validation_files),
            "only source files reads files",
        ),
        Rule(
            ("validation_fraction",),
            lambda c: 0 < c.validation_fraction <= 0.5,
            "must be greater than 0 and at most 0.5",
        ),
        Rule(
            ("max_train_tokens",),
            lambda c: c.max_train_tokens is None or c.max_train_tokens >= 1,
            "must be at least 1, or left out for the whole corpus",
        ),
        Rule(
            ("vocab_size",),
            lambda c: 257 <= c.vocab_size <= 2**32,
            "must be from 257 (the bytes and the end of text) to 4294967296 (what a uint32 shard holds)",
        ),
        *at_least(1000, "bpe_bytes"),
    )

    _locations: ClassVar = ("train_files", "validation_files")

    def identity(self) -> dict[str, Any]:
        """What decides the tokens, without where the files happen to lie (the shards' index has their hash)."""
        return {k: v for k, v in asdict(self).items() if k not in self._locations}

    @property
    def folder_name(self) -> str:
        """Name of the folder of this corpus's shards."""
        return f"{self.name}-{digest(self.identity())}"


@dataclass(frozen=True)
class TrainConfig(Checked):
    """Batch, optimiser and schedule: what every arm of a size shares."""

    seq_len: int
    """T, tokens in a sequence."""
    batch_tokens: int
    """Tokens in the global batch of one optimiser step, whatever the micro-batch and the devices."""
    tokens: float | None = None
    """Training tokens, taken to the nearest whole number of steps. Give this or tokens_per_parameter."""
    tokens_per_parameter: float | None = None
    """Training tokens per non-embedding parameter of the baseline; equal in every arm of a size."""
    allow_repeat: bool = False
    """Whether a corpus smaller than the training tokens may be read more than once."""
    validation_tokens: int = 131_072
    """Tokens of the validation set that every loss is measured on."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` for the hidden matrices with adamw for the rest, or adamw for all."""
    lr: float = 3e-3
    """Peak learning rate; muon's steps are scaled to the size of adamw's, so one rate serves both."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay of the first and the second moment."""
    weight_decay: float = 0.1
    """Decoupled weight decay, on hidden matrices and an untied head only."""
    clip_norm: float | None = 1.0
    """Largest norm of the gradient of a step; left as it is if this is null."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """`cosine`, or `wsd`: warm-up, stable, linear decay."""
    warmup_fraction: float = 0.05
    """Share of the steps in which the learning rate rises linearly from 0."""
    decay_fraction: float = 0.2
    """For wsd: share of the steps in which it falls to its end."""
    final_lr_fraction: float = 0.1
    """Learning rate at the end as a share of the peak."""
    precision: Literal["float32", "bf16"] = "float32"
    """`bf16` is autocast: weights, residual stream and depth logits stay float32."""

    rules = (
        *at_least(2, "seq_len"),
        Rule(
            ("batch_tokens", "seq_len"),
            lambda c: c.batch_tokens >= c.seq_len and c.batch_tokens % c.seq_len == 0,
            "batch_tokens must be a multiple of seq_len",
        ),
        Rule(
            ("tokens", "tokens_per_parameter"),
            lambda c: (c.tokens is None) != (c.tokens_per_parameter is None),
            "give exactly one of the two",
        ),
        Rule(("tokens",), lambda c: c.tokens is None or c.tokens > 0, "must be greater than 0"),
        Rule(
            ("tokens_per_parameter",),
            lambda c: c.tokens_per_parameter is None or c.tokens_per_parameter > 0,
            "must be greater than 0",
        ),
        Rule(
            ("validation_tokens", "seq_len"),
            lambda c: c.validation_tokens >= c.seq_len and c.validation_tokens % c.seq_len == 0,
            "validation_tokens must be a multiple of seq_len",
        ),
        *positive("lr"),
        Rule(("clip_norm",), lambda c: c.clip_norm is None or c.clip_norm > 0, "must be greater than 0, or null"),
        Rule(
            ("betas",),
            lambda c: len(c.betas) == 2 and all(0 <= b < 1 for b in c.betas),
            "must be two numbers from 0 to below 1",
        ),
        *at_least(0, "weight_decay"),
        *each(
            ("warmup_fraction", "decay_fraction", "final_lr_fraction"),
            lambda value: 0 <= value <= 1,
            "must be from 0 to 1",
        ),
        Rule(
            ("schedule", "warmup_fraction", "decay_fraction"),
            lambda c: c.schedule != "wsd" or c.warmup_fraction + c.decay_fraction <= 1,
            "the two must not exceed 1 together",
        ),
    )

    _tuning: ClassVar = ("optimizer", "lr", "betas", "weight_decay", "clip_norm")

    def tuning(self) -> dict[str, Any]:
        """What a sweep over rates would vary; arms tuned unequally are warned about."""
        return {key: getattr(self, key) for key in self._tuning}

    def schedule_identity(self) -> dict[str, Any]:
        """Everything else: runs may be paired only where it is equal."""
        return {key: value for key, value in asdict(self).items() if key not in self._tuning}


@dataclass(frozen=True)
class ExecutionConfig(Checked):
    """How a run is carried out: nothing here changes what it computes, beyond rounding."""

    runs_folder: str = "runs"
    """Where run directories are made."""
    data_folder: str = "data"
    """Where the corpora's shards are."""
    micro_batch: int | None = None
    """Sequences in one forward pass on one device; the largest that memory holds is fastest. The whole batch of a
    device if not given."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of a run; `auto` takes a GPU where there is one."""
    devices: int = 1
    """Devices of one run; more than one trains data-parallel."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How several devices share a run: `ddp` keeps weights, gradients and optimiser on each, `fsdp` a share of them."""
    checkpoint_activations: bool = False
    """Whether a sublayer's activations are computed again in the backward pass instead of kept."""
    compile: bool = False
    """Whether the model is compiled, in place. Pays off from a few minutes of training on."""
    workers: int = 0
    """Processes that load data; the shards are memory-mapped, so 0 is nearly always right."""
    log_every: int = 10
    """Steps between two rows of metrics.csv."""
    validate_every: int = 200
    """Steps between two measurements of the validation loss; it is always measured at the end."""
    checkpoint_every: int = 100
    """Steps between two checkpoints."""
    dynamics_every: int | None = None
    """Steps between two measurements of every sublayer's magnitudes, gradient and depth weights, for dynamics.parquet;
    none if not given. They are also taken at the start and at the end. At 100 they cost under 1 % of the time."""
    loggers: list[Literal["tensorboard", "wandb"]] = field(default_factory=list)
    """What to write beside metrics.csv, below the run's directory: `tensorboard` events, or a `wandb` run, offline
    unless the environment's WANDB_MODE says otherwise. Each is an extra of that name."""
    retries: int = 2
    """How often a sweep starts a failed run again."""
    peak_tflops: float | None = None
    """Peak TFLOP/s of one device at this precision, for the utilisation; none is printed if it is not given."""

    rules = (
        Rule(
            ("micro_batch",),
            lambda c: c.micro_batch is None or c.micro_batch >= 1,
            "must be at least 1, or left out for the whole batch",
        ),
        *at_least(1, "devices", "log_every", "validate_every", "checkpoint_every"),
        *at_least(0, "workers", "retries"),
        Rule(
            ("validate_every", "log_every"),
            lambda c: c.validate_every % c.log_every == 0,
            "validate_every must be a multiple of log_every",
        ),
        Rule(
            ("checkpoint_every", "log_every"),
            lambda c: c.checkpoint_every % c.log_every == 0,
            "checkpoint_every must be a multiple of log_every",
        ),
        Rule(
            ("dynamics_every", "log_every"),
            lambda c: c.dynamics_every is None or (c.dynamics_every >= 1 and c.dynamics_every % c.log_every == 0),
            "dynamics_every must be a multiple of log_every, or left out",
        ),
        Rule(
            ("strategy", "dynamics_every"),
            lambda c: c.dynamics_every is None or c.devices == 1 or c.strategy != "fsdp",
            "dynamics are measured by one process, of whose weights fsdp leaves it a share; take ddp, or leave "
            "dynamics_every out",
        ),
        Rule(
            ("peak_tflops",),
            lambda c: c.peak_tflops is None or c.peak_tflops > 0,
            "must be greater than 0, or left out where it is not known",
        ),
    )


@dataclass(frozen=True)
class RunConfig(Checked):
    """One run: everything that decides its result, and how it is carried out."""

    model: ModelConfig
    """Shape of the model."""
    data: DataConfig
    """Corpus."""
    train: TrainConfig
    """Batch, optimiser, schedule."""
    residual: ResidualConfig = field(default_factory=ResidualConfig)
    """Residual scheme."""
    variant: str = ""
    """Name of the arm; the scheme's name if not given."""
    seed: int = 0
    """Decides initial weights and data order, equally in every arm."""
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    """How it is carried out."""

    rules = (*at_least(0, "seed"),)

    def __post_init__(self) -> None:
        if not self.variant:
            object.__setattr__(self, "variant", self.residual.scheme)
        problems = [p for rule in (*named("variant"), *self.rules) if (p := rule.problem(self))]
        problems += self._micro_batch_problems()
        if self.execution.devices > 1 and self.execution.strategy == "fsdp" and self.train.optimizer == "muon":
            problems.append(
                "execution.strategy is 'fsdp', train.optimizer is 'muon': muon needs whole matrices, of which fsdp "
                "leaves a device a share; take ddp, or adamw"
            )
        from scaling.model.residual import scheme_problems  # needs torch, which --help must not wait for

        problems += scheme_problems(self.residual, self.model.n_sublayers, self.model.d_model)
        if problems:
            raise ConfigError(problems)

    def _micro_batch_problems(self) -> list[str]:
        sequences, devices = self.batch_sequences, self.execution.devices
        micro = self.execution.micro_batch
        if sequences % devices:
            return [f"execution.devices is {devices}: must divide the {sequences} sequences of train.batch_tokens"]
        if micro is not None and (sequences // devices) % micro:
            return [
                f"execution.micro_batch is {micro}: must divide the {sequences // devices} sequences a device sees "
                f"in one batch ({sequences} sequences, {devices} devices)"
            ]
        return []

    @property
    def batch_sequences(self) -> int:
        """Sequences in the global batch."""
        return self.train.batch_tokens // self.train.seq_len

    @property
    def micro_batch(self) -> int:
        """Sequences in one forward pass on one device."""
        return self.execution.micro_batch or self.batch_sequences // self.execution.devices

    @property
    def smaller_micro_batch(self) -> int | None:
        """The largest that is at most half and still divides the batch; None where there is none."""
        sequences = self.batch_sequences // self.execution.devices
        return next((m for m in range(self.micro_batch // 2, 0, -1) if sequences % m == 0), None)

    @property
    def shape(self) -> ModelShape:
        """What parameters and FLOPs are counted from."""
        return self.model.shape(self.residual, self.data.vocab_size, self.train.seq_len)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole schedule; the scheme's own parameters do not count, so arms are equal."""
        tokens = self.train.tokens
        if tokens is None:
            assert self.train.tokens_per_parameter is not None
            shape = self.shape
            tokens = self.train.tokens_per_parameter * (non_embedding_parameters(shape) - shape.residual_parameters)
        return max(1, round(tokens / self.train.batch_tokens))

    @property
    def tokens(self) -> int:
        """Training tokens of the whole schedule."""
        return self.steps * self.train.batch_tokens

    def identity(self) -> dict[str, Any]:
        """Everything that decides the result, and nothing else."""
        return {
            "model": asdict(self.model),
            "residual": asdict(self.residual),
            "data": self.data.identity(),
            "train": asdict(self.train),
            "seed": self.seed,
        }

    @property
    def run_name(self) -> str:
        """`<variant>-<size>-s<seed>-<hash>`."""
        return f"{self.variant}-{self.model.name}-s{self.seed}-{digest(self.identity())}"

    @property
    def directory(self) -> RunDirectory:
        """Where its files are."""
        return RunDirectory(Path(self.execution.runs_folder) / self.run_name)


@dataclass(frozen=True)
class SweepConfig(Checked):
    """An experiment: every size x variant x seed, all else equal within a size."""

    name: str
    """Name of the sweep; its runs are in <runs folder>/<name>."""
    data: DataConfig
    """Corpus."""
    train: dict[str, Any]
    """Training settings that all sizes share, or a file of them; a size may add or replace some."""
    sizes: list[dict[str, Any]]
    """One entry a size: `model` (a file or keys), and, if needed, its own `train` and `execution` settings."""
    variants: dict[str, ResidualConfig]
    """The arms: a name for each, and its residual scheme."""
    seeds: list[int] = field(default_factory=lambda: [0])
    """One run of every size and arm for each."""
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    """How runs are carried out."""

    rules = (
        *named("name"),
        *each(("sizes", "variants", "seeds"), lambda value: len(value) > 0, "must hold at least one entry"),
        Rule(("seeds",), lambda c: len(set(c.seeds)) == len(c.seeds), "must all differ"),
    )


def digest(value: Any) -> str:
    """Eight hex digits of the SHA-256 of a value made of plain types; 1 and 1.0 are equal, as are lists and tuples."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
