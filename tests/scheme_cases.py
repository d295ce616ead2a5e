"""Every registered residual scheme, and every ablation: how it is built, what judges it, how it starts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from scaling.config import ModelConfig, ResidualConfig
from scaling.model.language_model import LanguageModel
from scaling.model.residual import ResidualScheme, build_scheme
from scaling.model.residual.baseline import Baseline
from scaling.model.residual.reference import Reference, VariantReference
from scaling.model.residual.reference_rivals import (
    DenseFormerReference,
    HighwayReference,
    HyperConnectionsReference,
    MhcLiteReference,
    MhcReference,
)

EPS = 1e-6
TOKENS = torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Case:
    """A scheme under test."""

    config: ResidualConfig
    reference: Callable[[ResidualScheme], Any]
    """The judge, over the scheme's own parameters."""
    starts_as_baseline: bool = True
    norms: Callable[[ResidualScheme], int] = field(default=lambda s: 0)
    """Vectors of width D a token of which it takes a mean square."""
    heavy: bool = False
    """Whether compiling it takes long."""


def attention(scheme):
    return Reference(scheme.queries, scheme.gains, scheme.ends, EPS)


def variant(scheme):
    read = scheme.variant
    parameters = dict(read.named_parameters())
    if "scalars" in parameters:
        parts = parameters["scalars"].split(read.sizes)
        parameters["scalars"] = [part.view(-1, read.options.n_heads) for part in parts]
    return VariantReference(read.options, scheme.ends, EPS, **parameters)


def values_and_queries(scheme):
    options, n = scheme.options, scheme.n_sublayers
    return (options.mixing == "attention" and options.key_norm) * (n + 1) + (options.query == "input") * n


def with_streams(reference):
    return lambda s: reference(**dict(s.named_parameters()), n_streams=s.n_streams, eps=EPS)


def case(scheme, options=None, reference=attention, **facts):
    return Case(ResidualConfig(scheme, options or {}), reference, **facts)


def ablation(scheme, **options):
    return case(
        scheme, options, variant, starts_as_baseline="window" not in options, norms=values_and_queries, heavy=True
    )


CASES = {
    "baseline": case("baseline", reference=lambda s: Baseline(s.n_sublayers, s.d_model, EPS)),
    "block-3": case("block", {"n_blocks": 3}, norms=values_and_queries),
    "block-of-4": case("block", {"block_size": 4}, norms=values_and_queries, heavy=True),
    "full": case("full", norms=values_and_queries, heavy=True),
    "highway": case(
        "highway",
        reference=lambda s: HighwayReference(s.weights, s.biases, EPS),
        starts_as_baseline=False,
        norms=lambda s: s.n_sublayers,
    ),
    "denseformer": case(
        "denseformer",
        reference=lambda s: DenseFormerReference(s.weights.split(s.sizes), s.period),
    ),
    "denseformer-1": case(
        "denseformer", {"period": 1}, lambda s: DenseFormerReference(s.weights.split(s.sizes), s.period), heavy=True
    ),
    "hyper_connections": case(
        "hyper_connections",
        reference=lambda s: HyperConnectionsReference(**dict(s.named_parameters()), eps=EPS),
        norms=lambda s: s.n_sublayers * s.n_streams,
        heavy=True,
    ),
    "mhc": case("mhc", reference=with_streams(MhcReference), norms=lambda s: s.n_sublayers * s.n_streams, heavy=True),
    "mhc_lite": case(
        "mhc_lite",
        {"n_streams": 3},
        with_streams(MhcLiteReference),
        starts_as_baseline=False,
        norms=lambda s: s.n_sublayers * s.n_streams,
        heavy=True,
    ),
    "full-input-query": ablation("full", query="input"),
    "full-scalars": ablation("full", mixing="scalars"),
    "full-sigmoid": ablation("full", activation="sigmoid"),
    "full-no-key-norm": ablation("full", key_norm=False),
    "full-window-2": ablation("full", window=2),
    "block-2-heads": ablation("block", n_blocks=3, n_heads=2),
    "block-no-key-norm": ablation("block", n_blocks=3, key_norm=False),
    "block-all-options": ablation("block", block_size=3, query="input", activation="sigmoid", n_heads=2),
    "block-scalars-2-heads": ablation("block", n_blocks=3, mixing="scalars", n_heads=2, activation="sigmoid"),
}
SCHEMES_ONCE = [
    name for name in CASES if CASES[name].reference is not variant and name not in ("block-of-4", "denseformer-1")
]


def over(names=CASES, slow=lambda name: False):
    """Parametrise a test over cases, by name; some may be marked slow."""
    marked = [pytest.param(n, marks=pytest.mark.slow) if slow(n) else n for n in names]
    return pytest.mark.parametrize("name", marked)


def model_of(config, *, seed=0, d_model=24, n_layers=3, vocab=40, seq_len=10, **shape):
    """A small model with the residual scheme."""
    model = ModelConfig(
        name="m", n_layers=n_layers, d_model=d_model, **{"n_heads": 1, "d_ff": 16, "head_dim": 8, **shape}
    )
    return LanguageModel(model, config, vocab, seq_len, seed)


def built(name, n_sublayers=7, d_model=16):
    """The scheme alone."""
    return build_scheme(CASES[name].config, n_sublayers, d_model, EPS)


def randomise(scheme, seed=0, scale=1.0):
    """Give a scheme's parameters random values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in scheme.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64))


def doubles(*shape, seed=1):
    """A float64 leaf."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def walk(scheme, embedding, maps):
    """Run a residual scheme over sublayers tanh(x @ W); returns every read and the final one."""
    state, reads = scheme.start(embedding), []
    for i, weight in enumerate(maps):
        reads.append(scheme.read(state, i))
        state = scheme.write(state, i, torch.tanh(reads[-1] @ weight))
    return [*reads, scheme.finish(state)]
