"""The constraints of mHC and mHC-lite on their three maps."""

import pytest
import torch
from scheme_cases import built, randomise

from scaling.model.residual.mhc import sinkhorn
from scaling.model.residual.reference_rivals import MhcReference


@pytest.mark.parametrize(("name", "tolerance"), [("mhc", 1e-2), ("mhc_lite", 1e-12)])
def test_mixing_matrices_are_doubly_stochastic(name, tolerance):
    """Rows sum to 1 exactly; of mHC columns nearly, of mHC-lite exactly."""
    streams = torch.randn(2, 3, 4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scheme = built(name).double()
    randomise(scheme, scale=0.5)
    mapping = scheme.mapping(streams[:, :, : scheme.n_streams], 2)
    ones = torch.ones(2, 3, scheme.n_streams, dtype=torch.float64)
    torch.testing.assert_close(mapping.mix.sum(-1), ones, rtol=0, atol=1e-12)
    torch.testing.assert_close(mapping.mix.sum(-2), ones, rtol=0, atol=tolerance)
    assert bool((mapping.mix >= 0).all())
    assert bool(((mapping.read > 0) & (mapping.read < 1)).all())
    assert bool(((mapping.write > 0) & (mapping.write < 2)).all())


def far_apart(kind):
    """Logits (B, T, 4, 4), as they may become in training: all of them large, or a row or a column far below others."""
    logits = torch.randn(8, 8, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "all":
        return 25 * logits
    return logits - 60 * torch.eye(4, dtype=torch.float64)[0].view((1, 4) if kind == "column" else (4, 1))


@pytest.mark.parametrize("kind", ["all", "row", "column"])
def test_sinkhorn_of_logits_far_apart_is_the_references_also_in_float32(kind):
    logits = far_apart(kind)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reference = MhcReference(*[torch.empty(0)] * 3, n_streams=4, eps=0.0)

    def run(make, dtype):
        leaf = logits.to(dtype, copy=True).requires_grad_()
        matrix = make(leaf)
        (gradient,) = torch.autograd.grad((matrix * weights.to(dtype)).sum(), leaf)
        return matrix.double(), gradient.double()

    expected = run(lambda x: reference.matrix(x.flatten(-2)), torch.float64)
    torch.testing.assert_close(run(sinkhorn, torch.float64), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(run(sinkhorn, torch.float32), expected, rtol=1e-4, atol=1e-4)
