"""Which windows make the k-th batch, and how ranks and micro-batches share it.

The k-th global batch is a function of (data, seed, k) alone. Micro-batch, devices, workers and the step a run
resumes from only decide how that batch is dealt out.

Shapes: B sequences, T tokens in a sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from scaling.data.shards import TokenReader
from scaling.errors import DataError

Windows = npt.NDArray[np.int64]


class BatchOrder:
    """The windows of every global batch: one permutation of all windows after the other, dealt in order."""

    def __init__(self, n_windows: int, seq_len: int, batch_sequences: int, seed: int, allow_repeat: bool = False):
        """Define the order.

        Args:
            n_windows: windows of the training split.
            seq_len: T.
            batch_sequences: windows in a global batch.
            seed: decides the permutations.
            allow_repeat: whether a second epoch may begin; a batch may hold the end of one and the start of the next.
        """
        self.n_windows, self.seq_len, self.batch_sequences = n_windows, seq_len, batch_sequences
        self.seed, self.allow_repeat = seed, allow_repeat
        self._epoch, self._permutation = 0, _permutation(n_windows, seed, 0)

    def check(self, steps: int) -> None:
        """Refuse more steps than the corpus has; to be called before training starts.

        Raises:
            DataError: `steps` global batches need a second epoch, and that is not allowed.
        """
        if steps * self.batch_sequences > self.n_windows and not self.allow_repeat:
            raise DataError(
                f"the run asks for {steps * self.batch_sequences * self.seq_len} training tokens "
                f"({steps} steps of {self.batch_sequences} x {self.seq_len}), the corpus has "
                f"{self.n_windows * self.seq_len}: set train.allow_repeat, lower train.tokens or "
                "train.tokens_per_parameter, or prepare a larger corpus"
            )

    def batch(self, step: int) -> Windows:
        """Window indices, (batch_sequences,), of the global batch number `step`, counted from 0.

        Raises:
            DataError: it lies beyond the first epoch, and that is not allowed.
        """
        self.check(step + 1)
        positions = np.arange(step * self.batch_sequences, (step + 1) * self.batch_sequences)
        epochs, within = np.divmod(positions, self.n_windows)
        parts = [self._of_epoch(epoch)[within[epochs == epoch]] for epoch in np.unique(epochs).tolist()]
        return np.concatenate(parts)

    def _of_epoch(self, epoch: int) -> Windows:
        if epoch != self._epoch:
            self._epoch, self._permutation = epoch, _permutation(self.n_windows, self.seed, epoch)
        return self._permutation


def _permutation(n: int, seed: int, epoch: int) -> Windows:
    # Sorting raw bits: numpy keeps those the same in every release, but not Generator.permutation.
    keys = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(n)
    return np.argsort(keys, kind="stable")


class TrainingBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Micro-batches of one rank, (inputs, targets), both (micro_batch, T) int64; for `DataLoader(batch_size=None)`.

    Rank r takes the r-th contiguous part of each global batch and splits it in order. With n workers, worker w
    reads every n-th micro-batch, which the loader puts together in the same order as one process would.
    """

    def __init__(
        self,
        reader: TokenReader,
        order: BatchOrder,
        steps: int,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        start_step: int = 0,
    ):
        """Define the part.

        Args:
            reader: the training split.
            order: the windows of each global batch.
            steps: global batches of the whole schedule.
            micro_batch: sequences in a micro-batch.
            rank: this device's number, 0 to world - 1.
            world: devices.
            start_step: global batches already trained on.

        Raises:
            DataError: world x micro_batch does not divide the global batch.
        """
        if order.batch_sequences % (world * micro_batch):
            raise DataError(
                f"a global batch of {order.batch_sequences} sequences cannot be dealt to {world} devices in "
                f"micro-batches of {micro_batch}: devices x micro_batch must divide it"
            )
        self.reader, self.order, self.steps, self.micro_batch = reader, order, steps, micro_batch
        self.rank, self.world, self.start_step = rank, world, start_step

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (_tensors(self.reader, windows) for windows in _of_this_worker(self._micro_batches()))

    def _micro_batches(self) -> Iterator[Windows]:
        for step in range(self.start_step, self.steps):
            parts = self.order.batch(step).reshape(self.world, -1, self.micro_batch)
            yield from parts[self.rank]


class ValidationBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """The first windows of the validation split, (inputs, targets), (at most micro_batch, T) int64, of one rank.

    The same tokens whatever the micro-batch and the ranks: rank r takes the r-th contiguous part, and a last
    micro-batch that is short is kept, so a loss is the sum over tokens divided by their number.
    """

    def __init__(self, reader: TokenReader, validation_tokens: int, micro_batch: int, rank: int = 0, world: int = 1):
        """Define the part.

        Args:
            reader: the validation split.
            validation_tokens: tokens of all ranks together, a multiple of T.
            micro_batch: sequences in a micro-batch.
            rank: this device's number, 0 to world - 1.
            world: devices.

        Raises:
            DataError: the split holds fewer tokens, or `world` does not divide their sequences (ranks with different
                numbers of micro-batches would wait for each other forever).
        """
        n_windows = validation_tokens // reader.seq_len
        if n_windows > reader.n_windows:
            raise DataError(
                f"train.validation_tokens is {validation_tokens}, but {reader.index.folder} holds "
                f"{reader.n_windows * reader.seq_len} validation tokens in sequences of {reader.seq_len}: lower it, or "
                "prepare the corpus with a larger data.validation_fraction or more data.validation_files"
            )
        if n_windows % world:
            raise DataError(
                f"execution.devices is {world}: must divide the {n_windows} sequences of train.validation_tokens"
            )
        self.reader, self.micro_batch = reader, micro_batch
        self.windows = np.arange(n_windows).reshape(world, -1)[rank]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        starts = range(0, len(self.windows), self.micro_batch)
        micro_batches = (self.windows[start : start + self.micro_batch] for start in starts)
        return (_tensors(self.reader, windows) for windows in _of_this_worker(micro_batches))


def chain(previous: str, reader: TokenReader, windows: npt.ArrayLike) -> str:
    """Extend a hash over global batches by one; equal hashes mean equal tokens in equal order.

    Args:
        previous: hash of the batches before, in hex; empty before the first.
        reader: the training split.
        windows: indices of the whole global batch, in order.

    Returns:
        SHA-256 in hex of the previous hash and the batch's tokens.
    """
    tokens = reader.windows(windows).astype("<u4").tobytes()
    return hashlib.sha256(bytes.fromhex(previous) + tokens).hexdigest()


def _of_this_worker(micro_batches: Iterator[Windows]) -> Iterator[Windows]:
    worker = get_worker_info()
    number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    return (windows for i, windows in enumerate(micro_batches) if i % workers == number)


def _tensors(reader: TokenReader, windows: Windows) -> tuple[Tensor, Tensor]:
    tokens = torch.from_numpy(reader.windows(windows))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
