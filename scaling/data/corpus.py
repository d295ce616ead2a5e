"""A prepared corpus as a run uses it, checked against everything the run will ask of it."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.config import RunConfig
from scaling.data.batches import BatchOrder, ValidationBatches
from scaling.data.shards import Index, TokenReader, load_index
from scaling.errors import CheckpointError
from scaling.records import RunDirectory


@dataclass(frozen=True)
class Corpus:
    """The index, a reader of each split, and the order of training batches."""

    index: Index
    training: TokenReader
    validation: TokenReader
    order: BatchOrder


def open_corpus(config: RunConfig) -> Corpus:
    """Open the corpus of a run.

    Raises:
        DataError: it is not prepared, damaged, or smaller than the run needs.
    """
    train, execution = config.train, config.execution
    index = load_index(config.data, execution.data_folder)
    training = TokenReader(index, "train", train.seq_len)
    validation = TokenReader(index, "validation", train.seq_len)
    order = BatchOrder(training.n_windows, train.seq_len, config.batch_sequences, config.seed, train.allow_repeat)
    order.check(config.steps)
    ValidationBatches(validation, train.validation_tokens, config.micro_batch, world=execution.devices)
    return Corpus(index, training, validation, order)


def check_tokens(run: RunDirectory, index: Index) -> None:
    """Refuse to take a run's files for those of other tokens, whether it is finished or goes on.

    Raises:
        CheckpointError: the corpus is not the one it was trained on.
    """
    facts, result = run.read_run() or {}, run.read_result() or {}
    recorded = {facts.get("data", {}).get("hash", index.hash), result.get("data_hash", index.hash)}
    if recorded != {index.hash}:
        raise CheckpointError(
            f"{run.path} was trained on other tokens than {index.folder} has now: "
            "give another execution.runs_folder, or delete the run directory"
        )
