"""The Lightning data module: the same global batches in the same order, from whichever step the run goes on."""

from __future__ import annotations

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from scaling.config import RunConfig
from scaling.data.batches import TrainingBatches, ValidationBatches, chain
from scaling.data.corpus import open_corpus


class TokenData(pl.LightningDataModule):
    """Training and validation batches of a run."""

    def __init__(self, config: RunConfig):
        """Open the corpus and check that it serves the whole run.

        Raises:
            DataError: the corpus is not prepared, damaged, or smaller than the run needs.
        """
        super().__init__()
        self.config, self.corpus = config, open_corpus(config)

    def train_dataloader(self) -> DataLoader:
        """Micro-batches of this rank from the trainer's step on."""
        assert self.trainer is not None
        batches = TrainingBatches(
            self.corpus.training,
            self.corpus.order,
            self.config.steps,
            self.config.micro_batch,
            self.trainer.global_rank,
            self.trainer.world_size,
            start_step=self.trainer.global_step,
        )
        return self._loader(batches)

    def validation_batches(self) -> DataLoader:
        """Micro-batches of this rank over the fixed validation tokens."""
        assert self.trainer is not None
        batches = ValidationBatches(
            self.corpus.validation,
            self.config.train.validation_tokens,
            self.config.micro_batch,
            self.trainer.global_rank,
            self.trainer.world_size,
        )
        return self._loader(batches)

    def extend_hash(self, batches_hash: str, step: int) -> str:
        """Chain the global batch of one step to the hash of those before it."""
        return chain(batches_hash, self.corpus.training, self.corpus.order.batch(step))

    def _loader(self, batches: TrainingBatches | ValidationBatches) -> DataLoader:
        return DataLoader(batches, batch_size=None, num_workers=self.config.execution.workers)
