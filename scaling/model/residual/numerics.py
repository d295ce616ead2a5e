"""What the schemes compute with: at least float32 also under autocast, and the scale of RMSNorm by itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """float32, or what the tensor has if that is wider."""
    return torch.promote_types(tensor.dtype, torch.float32)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, where there is such a thing."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / rms over the last dimension of (..., D): (...)."""
    return torch.rsqrt(torch.linalg.vector_norm(x, dim=-1).square() / x.shape[-1] + eps)
