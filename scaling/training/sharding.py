"""Weights, gradients and optimiser in shares, one a device (FSDP2); checkpoints are as with any other strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from scaling.errors import TrainingError
from scaling.model.language_model import LanguageModel


def shard(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Divide every sublayer's parameters, and as one more group all others, among the devices of a mesh.

    A sublayer's PreNorm is applied with the read before it, outside the sublayer's own forward, for which alone its
    group is gathered: so it goes with the others.

    Raises:
        TrainingError: a parameter has no dimension to divide.
    """
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise TrainingError(
            f"execution.strategy fsdp cannot divide the scalar {scalars[0]}: give it shape (1,), or take ddp"
        )
    norms = [cast(nn.Module, sublayer._modules.pop("norm")) for sublayer in model.sublayers]
    for sublayer in model.sublayers:
        fully_shard(sublayer, mesh=mesh)
    model.add_module("norms", nn.ModuleList(norms))
    fully_shard(model, mesh=mesh)
    del model.norms
    for sublayer, norm in zip(model.sublayers, norms, strict=True):
        sublayer.add_module("norm", norm)


def whole(value: Any) -> Any:
    """A tensor whose shares lie on several devices, as one; every device has to ask. Anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def share(value: Any, like: Tensor) -> Any:
    """This device's share of a whole tensor, if `like` is in shares and of its shape."""
    if isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape:
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return value


class Sharded(ModelParallelStrategy):
    """Fully sharded data parallelism; `TrainingModule.configure_model` shards, and checkpoints hold whole tensors."""

    def __init__(self, devices: int):
        super().__init__(data_parallel_size=devices, tensor_parallel_size=1)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """The optimiser is restored as by any other strategy."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole weights, on the first device's process only."""
        assert self.lightning_module is not None
        return self._gathered(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Whole moments, on the first device's process only."""
        return self._gathered(ParallelStrategy.optimizer_state(self, optimizer))

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take this device's share of whole weights."""
        assert self.lightning_module is not None
        parameters = self.lightning_module.state_dict()
        shares = {k: share(v, parameters.get(k, v)) for k, v in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(shares, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take this device's share of whole moments."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            numbers = [number for group in state["param_groups"] for number in group["params"]]
            like = dict(zip(numbers, parameters, strict=True))
            moments = {n: {k: share(v, like[n]) for k, v in of.items()} for n, of in state["state"].items()}
            optimizer.load_state_dict({**state, "state": moments})

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the file as any other strategy does."""
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write the file as any other strategy does."""
        ParallelStrategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def _gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        def gathered(value: Any) -> Any:  # one tensor after the other, so that no device holds them all
            tensor = whole(value)
            return (tensor.cpu() if self.is_global_zero else None) if isinstance(value, DTensor) else tensor

        return tree_map(gathered, state, is_leaf=lambda value: isinstance(value, Tensor))
