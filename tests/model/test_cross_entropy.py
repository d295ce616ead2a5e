"""The loss in chunks equals the loss at once, and keeps less."""

import pytest
import torch
import torch.nn.functional as F

from scaling.memory import saved_bytes
from scaling.model import cross_entropy
from scaling.model.cross_entropy import linear_cross_entropy


def case(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (
        torch.randn(s, generator=generator, dtype=dtype, requires_grad=True) for s in ((3, 7, 5), (11, 5))
    )
    return hidden, weight, torch.randint(11, (3, 7), generator=generator)


@pytest.mark.parametrize("at_once", [2**26, 100, 11])
def test_loss_and_gradients_are_those_of_the_definition(monkeypatch, at_once):
    monkeypatch.setattr(cross_entropy, "LOGITS_AT_ONCE", at_once)
    hidden, weight, targets = case()
    ours = linear_cross_entropy(hidden, weight, targets)
    theirs = F.cross_entropy((hidden @ weight.t()).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)
    for a, b in zip(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_chunks_keep_no_logits(monkeypatch):
    hidden, weight, targets = case(torch.float32)

    class Loss(torch.nn.Module):
        def forward(self, hidden):
            return linear_cross_entropy(hidden * 1.0, weight, targets)

    logits = 3 * 7 * 11 * 4
    at_once = saved_bytes(Loss(), hidden)
    monkeypatch.setattr(cross_entropy, "LOGITS_AT_ONCE", 100)
    assert saved_bytes(Loss(), hidden) <= at_once - logits
