"""Depth mixing matrices are what the schemes do, and what arXiv 2603.15031, section 6.2, says of each."""

from itertools import pairwise

import pytest
import torch
from scheme_cases import CASES, TOKENS, model_of, over

from scaling.config import ResidualConfig
from scaling.errors import ConfigError
from scaling.model.depth_mixing import mixing_matrix, semiseparable_rank
from scaling.model.residual import SCHEMES
from scaling.model.residual.baseline import Baseline


def matrix_of(config, n_layers=6, dtype=torch.float32, **shape):
    """Near the scheme's start, so that no part of the matrix is lost beside another."""
    model = model_of(config, n_layers=n_layers, **shape).to(dtype)
    with torch.no_grad():
        for p, noise in zip(model.residual.parameters(), noise_like(model.residual), strict=True):
            p.add_(noise)
    matrix = mixing_matrix(model, TOKENS)
    return matrix.squeeze(2) if matrix.shape[2] == 1 else matrix, model


def noise_like(scheme):
    generator = torch.Generator().manual_seed(0)
    return [0.4 * torch.randn(p.shape, generator=generator) for p in scheme.parameters()]


def entries(matrix):
    """Those on and below the diagonal (B, T, ...)."""
    rows, columns = torch.tril_indices(*matrix.shape[-2:])
    return matrix[..., rows, columns]


def is_static(matrix):
    return torch.allclose(matrix, matrix[:1, :1].expand_as(matrix), rtol=0, atol=1e-8)


@over()
def test_reads_are_the_matrix_times_the_values(name):
    """In the model itself, whose normed reads its sublayers see; where there are heads, in the channels of each."""
    config = CASES[name].config
    heads = config.options.get("n_heads", 1)
    matrix, model = matrix_of(config, dtype=torch.float64, d_model=28)
    matrix = matrix.view(2, 10, heads, 13, 13)
    seen, values = [], [model.embedding(TOKENS)]
    for sublayer in model.sublayers:
        sublayer.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]) or values.append(output))
    seen.append(model.hidden(TOKENS))
    assert not torch.triu(matrix, 1).any()
    norms = [*(s.norm for s in model.sublayers), model.norm]
    for row, (norm, expected) in enumerate(zip(norms, seen, strict=True)):
        of_heads = [v.unflatten(-1, (heads, -1)) for v in values[: row + 1]]
        read = sum(matrix[..., row, i].unsqueeze(-1) * v for i, v in enumerate(of_heads)).flatten(-2)
        torch.testing.assert_close(norm(read), expected, rtol=1e-8, atol=1e-8)


def test_the_residual_stream_is_all_ones_and_1_semiseparable():
    matrix, _ = matrix_of(ResidualConfig("baseline"))
    torch.testing.assert_close(matrix, torch.ones_like(matrix).tril(), rtol=0, atol=1e-9)
    assert bool((semiseparable_rank(matrix) == 1).all())


def test_a_highway_is_1_semiseparable_and_its_rows_sum_to_1():
    matrix, model = matrix_of(ResidualConfig("highway"))
    assert bool((semiseparable_rank(matrix, 1e-6) == 1).all())
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 10, 13, dtype=torch.float64), rtol=0, atol=1e-8)
    assert not is_static(matrix)
    # Section 6.2's product, with the gates read off the diagonal: M_{i->l} = g_i times (1 - g_j) for i < j <= l.
    gates = matrix.diagonal(dim1=-2, dim2=-1)
    carried = torch.stack([(1 - gates[..., i + 1 :]).prod(-1) * gates[..., i] for i in range(13)], dim=-1)
    torch.testing.assert_close(matrix[..., -1, :], carried, rtol=1e-6, atol=1e-9)
    assert model.residual.n_sublayers == 12


@pytest.mark.parametrize("scheme", ["hyper_connections", "mhc", "mhc_lite"])
@pytest.mark.parametrize("n_streams", [1, 2, 4])
def test_m_streams_are_m_semiseparable(scheme, n_streams):
    matrix, _ = matrix_of(ResidualConfig(scheme, {"n_streams": n_streams}))
    assert bool((semiseparable_rank(matrix, 1e-6) == n_streams).all())
    assert not is_static(matrix)


@pytest.mark.parametrize("period", [1, 2])
def test_denseformer_is_dense_and_static(period):
    matrix, _ = matrix_of(ResidualConfig("denseformer", {"period": period}))
    assert is_static(matrix)
    assert bool((entries(matrix).abs() > 1e-4).all())
    assert bool((semiseparable_rank(matrix, 1e-6) > 1).all())


def test_full_is_dense_and_depends_on_the_input():
    matrix, _ = matrix_of(ResidualConfig("full"))
    assert not is_static(matrix)
    assert bool((entries(matrix) > 0).all())
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 10, 13, dtype=torch.float64), rtol=0, atol=1e-8)
    assert bool((semiseparable_rank(matrix, 1e-6) == 7).all())  # as large as a block of 13 rows and columns can have


@pytest.mark.parametrize(("n_sublayers", "n_blocks"), [(12, 3), (24, 4), (24, 3), (16, 8), (12, 1)])
def test_block_is_one_column_a_block_and_between_the_two(n_sublayers, n_blocks):
    """N blocks of S: a row and a column for the embedding and for each block, as far as there are rows.

    So the semiseparable rank is N + 1 in deep blocks and less than N in shallow ones; the paper's "between N and N + S"
    counts sources. Ours holds where blocks are as deep as they are many, and its upper end everywhere.
    """
    shape = {"n_layers": n_sublayers // 2, "d_model": 28}
    matrix, model = matrix_of(ResidualConfig("block", {"n_blocks": n_blocks}), **shape)
    size = n_sublayers // n_blocks
    for begin, end in pairwise((0, *model.residual.ends)):
        for row in range(begin + 1, n_sublayers + 1):
            block = matrix[..., row, begin + 1 : min(row, end) + 1]
            torch.testing.assert_close(block, block[..., :1].expand_as(block), rtol=0, atol=1e-7)
    begun = [1 + -(-column // size) for column in range(n_sublayers + 1)]
    expected = max(min(n_sublayers + 1 - column, columns) for column, columns in enumerate(begun))
    ranks = semiseparable_rank(matrix, 1e-6)
    assert bool((ranks == expected).all())
    assert expected <= n_blocks + size
    assert expected >= n_blocks or size < n_blocks
    assert bool((ranks < semiseparable_rank(matrix_of(ResidualConfig("full"), **shape)[0], 1e-6)).all())


def test_a_window_sees_the_embedding_and_the_last_outputs():
    matrix, _ = matrix_of(ResidualConfig("full", {"window": 2}))
    rows, columns = torch.tril_indices(13, 13)
    seen = (columns == 0) | (columns > rows - 2)
    assert bool((entries(matrix)[..., seen] > 0).all())
    assert entries(matrix)[..., ~seen].abs().max() < 1e-8


def test_what_has_no_matrix_is_one_line(monkeypatch):
    monkeypatch.setattr("scaling.model.residual.scheme.SCHEMES", dict(SCHEMES))

    class Channels(Baseline, name="channels"):
        def write(self, state, sublayer, output):
            return state + torch.linspace(0, 1, self.d_model, dtype=output.dtype) * output

    for config, shape, message in (
        (ResidualConfig("channels"), {}, "residual scheme channels has no depth mixing matrix here"),
        (ResidualConfig("full", {"n_heads": 2}), {}, "model.d_model is 24: must be at least 26, .* each of 2 heads"),
        (ResidualConfig("full"), {"d_model": 12}, "model.d_model is 12: must be at least 13"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            matrix_of(config, **shape)
        assert "\n" not in str(error.value)
