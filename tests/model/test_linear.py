"""Linear maps by oneDNN equal those by PyTorch's own choice, in value and gradient, for any shape."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from scaling.model.linear import linear

sizes = st.integers(1, 70)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), sizes, sizes, st.booleans(), st.booleans())
def test_values_and_gradients_are_those_of_the_definition(rows, k, n, transposed_weight, strided_x):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*rows, 2 * k if strided_x else k, generator=generator)
    weight = torch.randn((k, n) if transposed_weight else (n, k), generator=generator)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    operands = x[..., ::2] if strided_x else x, weight.t() if transposed_weight else weight
    grad = torch.randn(*rows, n, generator=generator)
    results = []
    for multiply, to in ((linear, torch.float32), (F.linear, torch.float64)):
        out = multiply(*(o.to(to) for o in operands))
        assert out.shape == (*rows, n)
        results.append([out, *torch.autograd.grad(out, leaves, grad.to(to))])
    for ours, exact in zip(*results, strict=True):
        assert ours.shape == exact.shape
        scale = max(1.0, exact.abs().max().item())
        assert (ours - exact).abs().max() <= 1e-5 * scale


def test_other_types_and_autocast_take_pytorchs_choice():
    x, weight = torch.randn(2, 3, 8), torch.randn(5, 8)
    assert linear(x.double(), weight.double()).dtype == torch.float64
    assert linear(x.to("meta"), weight.to("meta")).shape == (2, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


def test_one_operand_may_need_no_gradient():
    x, weight = torch.randn(2, 3, 8), torch.randn(5, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(linear(x, weight).sum(), weight)
    torch.testing.assert_close(grad, x.flatten(0, 1).sum(0).expand(5, 8))
    with pytest.raises(RuntimeError, match="does not require grad"):
        linear(x, weight.detach()).sum().backward()


def test_operator_declares_what_it_does():
    """Its shapes under fake tensors are the real ones, so that compiled graphs are right."""
    x, weight, grad = torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(2, 3, 5)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.scaling.linear.default, (x, weight), test_utils=tests)
    torch.library.opcheck(torch.ops.scaling.linear_backward.default, (grad, x, weight), test_utils=tests)
