"""Memory of a training step, counted rather than guessed: a real step on fake tensors, which store nothing."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from scaling.config import RunConfig, digest
from scaling.errors import ScalingError
from scaling.model.language_model import LanguageModel
from scaling.training.optimizer import build_optimizer

PARTS = ("weights", "gradients", "optimizer", "activations", "temporaries")
SHARDED = PARTS[:3]
"""What `execution.strategy: fsdp` divides by the devices."""


def training_memory(config: RunConfig) -> dict[str, int]:
    """Bytes on one device at the peak of a training step, by part (`PARTS`), which add up to the peak.

    `activations` are what the forward pass leaves to the backward pass, `temporaries` everything else that exists at
    that moment. Gradients of the step before are still there in the forward pass; the trainer drops them after it.
    Attention is PyTorch's fused one. What the driver, libraries' workspaces and the allocator's gaps take is not in it.

    Raises:
        ScalingError: the model looks at values of tensors, which fake ones do not have.
    """
    try:
        return _counted(config)
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        raise ScalingError(
            f"memory of {config.run_name} cannot be counted ({error.func} needs values of tensors, or is not known): "
            "measure it by a few steps on the device"
        ) from error


def _counted(config: RunConfig) -> dict[str, int]:
    with FakeTensorMode(), _kernels(config):
        model = LanguageModel(config.model, config.residual, config.data.vocab_size, config.train.seq_len)
        model.checkpoint_activations = config.execution.checkpoint_activations
        devices = config.execution.devices if config.execution.strategy == "fsdp" else 1
        live = LiveStorages(dict.fromkeys(SHARDED, devices))
        live.name("weights", (*model.parameters(), *model.buffers()))
        optimizer = _optimizer_bytes(model, config)
        with live:
            _step(model, config, live, *optimizer)
        peak = live.peak()
    if devices > 1:
        peak["temporaries"] += _unsharded_bytes(model)
    return {part: peak[part] for part in PARTS}


def _kernels(config: RunConfig) -> AbstractContextManager[None]:
    """A context in which kernels that fake tensors cannot run are stood for."""
    if config.model.kimi is None:
        return nullcontext()
    from scaling.model.kernel_footprints import kernel_footprints  # needs transformers, which takes seconds to import

    return kernel_footprints()


def _step(model: LanguageModel, config: RunConfig, live: LiveStorages, state_bytes: int, step_bytes: int) -> None:
    """A step as the trainer takes it, after one that left its gradients and the optimiser's state."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    live.name("gradients", (p.grad for p in parameters if p.grad is not None))
    state = torch.empty(state_bytes, dtype=torch.uint8)
    live.name("optimizer", (state,))

    tokens = torch.zeros(config.micro_batch, config.train.seq_len, dtype=torch.long)
    bf16 = config.train.precision == "bf16"
    with torch.autocast(
        "cpu", torch.bfloat16, enabled=bf16, cache_enabled=False
    ):  # the trainer's does not cache either
        loss = model(tokens, tokens)
    live.name_rest("activations")
    if config.micro_batch * config.execution.devices == config.batch_sequences:  # else they are added to
        model.zero_grad()
    loss.backward()
    live.name("gradients", (p.grad for p in parameters if p.grad is not None))
    nn.utils.clip_grad_norm_(parameters, config.train.clip_norm or math.inf)
    torch.empty(step_bytes, dtype=torch.uint8)


_OPTIMIZER_BYTES: dict[str, tuple[int, int]] = {}


def _optimizer_bytes(model: LanguageModel, config: RunConfig) -> tuple[int, int]:
    """What the optimiser keeps, and what it takes besides in a step; counted once, as no micro-batch changes it."""
    identity = config.identity()
    key = digest([identity["model"], identity["residual"], identity["data"], config.train.optimizer])
    if key not in _OPTIMIZER_BYTES:
        parameters, live = list(model.parameters()), LiveStorages()
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        live.name("weights", parameters)
        live.name("gradients", (p.grad for p in parameters if p.grad is not None))
        optimizer = build_optimizer(model, config.train)
        with live:
            optimizer.step()
            live.name_rest("optimizer")
            optimizer.step()
        peak = live.peak()
        _OPTIMIZER_BYTES[key] = peak["optimizer"], peak["temporaries"]
        model.zero_grad()
    return _OPTIMIZER_BYTES[key]


def _unsharded_bytes(model: LanguageModel) -> int:
    """Weights that a device holds whole in the middle of a step: those outside the sublayers, and one sublayer's."""

    def size(module: nn.Module) -> int:
        return sum(p.nbytes for p in module.parameters())

    of_sublayers = [size(sublayer) for sublayer in model.sublayers]
    return size(model) - sum(of_sublayers) + max(of_sublayers)


@dataclass
class _Storage:
    nbytes: int
    part: str | None = None


class LiveStorages(TorchDispatchMode):
    """Follows every tensor's storage from the operation that makes it to its end."""

    def __init__(self, divided_by: Mapping[str, int] | None = None):
        """Set up; the bytes of parts in `divided_by` count divided."""
        super().__init__()
        self._divided_by = divided_by or {}
        self._alive: dict[int, _Storage] = {}
        self._events: list[tuple[_Storage, int]] = []  # 1 where a storage begins, -1 where it ends

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note the storages it made."""
        result = operation(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._of(value)
        return result

    def name(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Say what some tensors are."""
        for tensor in tensors:
            self._of(tensor).part = part

    def name_rest(self, part: str) -> None:
        """Say what everything is that exists now and has no name."""
        for storage in self._alive.values():
            storage.part = storage.part or part

    def peak(self) -> Counter[str]:
        """Bytes by part at the moment when they were most; what has no name is `temporaries`."""
        now, highest = Counter[str](), Counter[str]()
        for storage, sign in self._events:
            part = storage.part or "temporaries"
            now[part] += sign * -(-storage.nbytes // self._divided_by.get(part, 1))
            if sign > 0 and now.total() > highest.total():
                highest = now.copy()
        return highest

    def _of(self, tensor: Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            self._alive[key] = _Storage(storage.nbytes())
            self._events.append((self._alive[key], 1))
            weakref.finalize(storage, self._end, key)
        return self._alive[key]

    def _end(self, key: int) -> None:
        self._events.append((self._alive.pop(key), -1))


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
