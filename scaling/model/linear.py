"""Linear maps by the library that is fastest on the device.

PyTorch's CPU build gives float32 products to MKL, which leaves AVX-512 unused on processors that are not Intel's, and
pointwise convolutions to oneDNN, which does not: there the same product takes less than half the time. A pointwise
convolution over channels-last data is a linear map, without a copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HAS_ONEDNN = torch.backends.mkldnn.is_available()


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., K) times the transpose of weight (N, K): (..., N)."""
    if _HAS_ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
        return _Linear.apply(x, weight)
    return F.linear(x, weight)


class Linear(nn.Linear):
    """A linear map without bias."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return linear(x, self.weight)


def _image(x: Tensor) -> Tensor:
    """(..., K) as one image (1, K, R, 1), channels last in memory."""
    return x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)


def _rows(image: Tensor, like: Tensor) -> Tensor:
    """An image (1, N, R, 1) as (..., N)."""
    return image.permute(0, 2, 3, 1).reshape(*like.shape[:-1], image.shape[1])


_LIBRARY = torch.library.Library("scaling", "DEF")  # `custom_op` checks more, and takes 2 % of a step to do so
_LIBRARY.define("linear(Tensor x, Tensor weight) -> Tensor")
_LIBRARY.define("linear_backward(Tensor grad, Tensor x, Tensor weight) -> (Tensor, Tensor)")


def _forward(x: Tensor, weight: Tensor) -> Tensor:
    return _rows(F.conv2d(_image(x), weight[:, :, None, None]), x)


def _backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    d_x, d_weight, _ = torch.ops.aten.convolution_backward(
        _image(grad), _image(x), weight[:, :, None, None],
        None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False],
    )  # fmt: skip
    return _rows(d_x, x), d_weight.reshape(weight.shape)


_LIBRARY.impl("linear", _forward, "CPU")
_LIBRARY.impl("linear_backward", _backward, "CPU")


@torch.library.register_fake("scaling::linear")
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.register_fake("scaling::linear_backward")
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.scaling.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return torch.ops.scaling.linear_backward(grad, *ctx.saved_tensors)
