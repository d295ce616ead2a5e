"""The k-th batch is a function of (data, seed, k) alone, however it is dealt out."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from data_corpora import tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from scaling.data.batches import BatchOrder, TrainingBatches, ValidationBatches, chain
from scaling.data.shards import Index, TokenReader
from scaling.errors import DataError

T = 4


@pytest.fixture(scope="module")
def reader(make_index: Callable[..., Index]) -> TokenReader:
    """100 windows over three shards."""
    return TokenReader(make_index([150, 3, 250], (43,)), "train", T)


def global_batch(reader: TokenReader, order: BatchOrder, step: int) -> torch.Tensor:
    return torch.from_numpy(reader.windows(order.batch(step)))


def joined(micro_batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Windows of T + 1 tokens out of inputs and targets, which have to agree where they overlap."""
    inputs, targets = micro_batch
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    return torch.cat([inputs, targets[:, -1:]], dim=1)


# --- the order


@given(n=st.integers(1, 60), size=st.integers(1, 20), seed=st.integers(0, 2**40), epochs=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_epoch_has_every_window_once(n: int, size: int, seed: int, epochs: int) -> None:
    order = BatchOrder(n, T, size, seed, allow_repeat=True)
    dealt = np.concatenate([order.batch(k) for k in range(-(-n * epochs // size))])
    for epoch in range(epochs):
        assert sorted(dealt[epoch * n : (epoch + 1) * n]) == list(range(n))


@given(steps=st.lists(st.integers(0, 50), min_size=1, max_size=8), size=st.integers(1, 9), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_batch_does_not_depend_on_those_asked_for_before(steps: list[int], size: int, seed: int) -> None:
    order = BatchOrder(23, T, size, seed, allow_repeat=True)
    for k in steps:
        np.testing.assert_array_equal(order.batch(k), BatchOrder(23, T, size, seed, allow_repeat=True).batch(k))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = [BatchOrder(50, T, 50, seed, allow_repeat=True).batch(k) for seed in range(3) for k in range(3)]
    for one, other in itertools.combinations(orders, 2):
        assert (one != other).any()


def test_the_order_of_a_seed_never_changes() -> None:
    order = BatchOrder(10, T, 5, seed=7)
    assert [order.batch(0).tolist(), order.batch(1).tolist()] == GOLDEN


GOLDEN = [[8, 4, 3, 6, 2], [1, 0, 5, 9, 7]]


def test_more_than_the_corpus_holds() -> None:
    order = BatchOrder(100, T, 8, seed=0)
    order.check(12)
    with pytest.raises(DataError, match=r"asks for 416 training tokens.*the corpus has 400.*train\.allow_repeat"):
        order.check(13)
    with pytest.raises(DataError, match="allow_repeat"):
        order.batch(12)
    BatchOrder(100, T, 8, seed=0, allow_repeat=True).check(10**6)


# --- dealing it out


@given(
    world=st.sampled_from([1, 2, 3, 6]),
    micro=st.sampled_from([1, 2, 4]),
    start=st.integers(0, 9),
    seed=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_ranks_and_micro_batches_make_up_the_global_batch(
    reader: TokenReader, world: int, micro: int, start: int, seed: int
) -> None:
    order = BatchOrder(reader.n_windows, T, 24, seed, allow_repeat=True)
    ranks = [list(TrainingBatches(reader, order, 9, micro, rank, world, start_step=start)) for rank in range(world)]
    per_step = 24 // world // micro
    assert all(len(dealt) == (9 - start) * per_step for dealt in ranks)
    for step in range(start, 9):
        first = (step - start) * per_step
        parts = [joined(micro_batch) for dealt in ranks for micro_batch in dealt[first : first + per_step]]
        assert all(len(part) == micro for part in parts)
        assert torch.equal(torch.cat(parts), global_batch(reader, order, step))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_do_not_change_the_order(reader: TokenReader, workers: int) -> None:
    order = BatchOrder(reader.n_windows, T, 10, seed=1)
    batches = TrainingBatches(reader, order, steps=7, micro_batch=5, start_step=2)
    alone = list(DataLoader(batches, batch_size=None))
    together = list(DataLoader(batches, batch_size=None, num_workers=workers))
    assert len(together) == len(alone) == 10
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(joined(one), joined(other))


@pytest.mark.parametrize(("world", "micro"), [(1, 7), (5, 1), (2, 8), (1, 48)])
def test_a_micro_batch_that_does_not_divide_is_refused(reader: TokenReader, world: int, micro: int) -> None:
    order = BatchOrder(reader.n_windows, T, 24, seed=0)
    with pytest.raises(DataError, match=f"batch of 24 sequences.*{world} devices.*micro-batches of {micro}"):
        TrainingBatches(reader, order, 3, micro, world=world)


def test_training_refuses_to_go_beyond_the_corpus(reader: TokenReader) -> None:
    order = BatchOrder(reader.n_windows, T, 24, seed=0)
    with pytest.raises(DataError, match="allow_repeat"):
        list(TrainingBatches(reader, order, 5, 24))


# --- validation


@given(micro=st.integers(1, 12), world=st.sampled_from([1, 2, 5, 10]))
@settings(max_examples=40, deadline=None)
def test_validation_is_the_first_tokens_whatever_the_micro_batch(reader: TokenReader, micro: int, world: int) -> None:
    held_out = TokenReader(reader.index, "validation", T)
    ranks = [list(ValidationBatches(held_out, 10 * T, micro, rank, world)) for rank in range(world)]
    assert len({len(dealt) for dealt in ranks}) == 1
    parts = [joined(micro_batch) for dealt in ranks for micro_batch in dealt]
    assert all(len(part) <= micro for part in parts)
    inputs = torch.cat([part[:, :-1] for part in parts]).flatten()
    assert inputs.tolist() == tokens_of(reader.index, "validation")[: 10 * T].tolist()


def test_validation_with_workers_is_the_same(reader: TokenReader) -> None:
    batches = ValidationBatches(TokenReader(reader.index, "validation", T), 10 * T, micro_batch=3)
    alone = [joined(b) for b in batches]
    together = [joined(b) for b in DataLoader(batches, batch_size=None, num_workers=2)]
    assert [len(part) for part in alone] == [3, 3, 3, 1]
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_validation_split_that_is_too_small(reader: TokenReader) -> None:
    held_out = TokenReader(reader.index, "validation", T)
    with pytest.raises(DataError, match=r"validation_tokens is 44, but .* holds 40 .*validation_fraction"):
        ValidationBatches(held_out, 11 * T, 2)
    with pytest.raises(DataError, match="devices is 3: must divide the 10 sequences"):
        ValidationBatches(held_out, 10 * T, 2, world=3)


# --- the hash of what was trained on


def test_chain_is_sha256_over_the_tokens_in_order(reader: TokenReader) -> None:
    order = BatchOrder(reader.n_windows, T, 24, seed=3)
    hashes = [""]
    for step in range(3):
        hashes.append(chain(hashes[-1], reader, order.batch(step)))
    expected = b""
    for step in range(3):
        tokens = global_batch(reader, order, step).numpy().astype("<u4").tobytes()
        expected = hashlib.sha256(expected + tokens).digest()
    assert hashes[-1] == expected.hex()
    swapped = chain(chain("", reader, order.batch(1)), reader, order.batch(0))
    assert swapped != hashes[2]
    assert chain("", reader, order.batch(0)[::-1]) != hashes[1]
