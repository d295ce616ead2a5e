"""Memory of a training step, counted rather than guessed: the model runs on fake tensors, which store nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from scaling.config import RunConfig
from scaling.model.language_model import LanguageModel
from scaling.training.optimizer import parameter_groups


def training_memory(config: RunConfig) -> dict[str, int]:
    """Bytes on one device by part: weights, gradients, optimiser, activations.

    Activations are what autograd keeps of one forward pass over a micro-batch, with PyTorch's fused attention.
    Temporary buffers and the allocator's slack come on top.
    """
    with FakeTensorMode():
        model = LanguageModel(config.model, config.residual, config.data.vocab_size, config.train.seq_len)
        tokens = torch.zeros(config.micro_batch, config.train.seq_len, dtype=torch.long)
        with torch.autocast("cpu", torch.bfloat16, enabled=config.train.precision == "bf16"):
            activations = saved_bytes(model, tokens, tokens)
    groups = {name: sum(p.numel() * p.element_size() for p in group) for name, group in parameter_groups(model).items()}
    weights = sum(groups.values())
    hidden_moments = 1 if config.train.optimizer == "muon" else 2
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": 2 * weights - (2 - hidden_moments) * groups["hidden"],
        "activations": activations,
    }


def saved_bytes(module: nn.Module, *inputs: Tensor) -> int:
    """Bytes that autograd keeps of a forward pass, each storage once, parameters, buffers and inputs left out."""
    own = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers(), *inputs)}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(*inputs)
    total = sum(storage.nbytes() for storage in kept.values())
    del output
    return total
