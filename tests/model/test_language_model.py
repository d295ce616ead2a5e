"""The decoder around the residual scheme: initial weights, attention, matched arms."""

import pytest
import torch
import torch.nn.functional as F

from scaling.config import ModelConfig, ResidualConfig
from scaling.model.language_model import LanguageModel
from scaling.model.sublayers import rotary_tables, rotate

TOKENS = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(0))


def model_of(scheme="baseline", seed=0, vocab=50, **changes):
    shape = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_ff": 40, "head_dim": 16} | changes
    return LanguageModel(ModelConfig(name="m", **shape), ResidualConfig(scheme, {}), vocab, 12, seed)


@pytest.mark.parametrize("tied_head", [True, False])
def test_shared_parameters_are_bit_identical_across_arms(tied_head):
    """A6: the extra parameters of an arm do not move the others."""
    arms = [model_of(scheme, n_layers=4, tied_head=tied_head).state_dict() for scheme in ("baseline", "block", "full")]
    for name, tensor in arms[0].items():
        assert all(torch.equal(tensor, arm[name]) for arm in arms[1:]), name


def test_seed_decides_the_weights():
    assert torch.equal(model_of(seed=1).embedding.weight, model_of(seed=1).embedding.weight)
    assert not torch.equal(model_of(seed=1).embedding.weight, model_of(seed=2).embedding.weight)


def test_init_has_the_deviations_of_its_table():
    model = model_of(vocab=2000, d_model=256, d_ff=512, n_heads=8, n_layers=8, tied_head=False)
    for name, p in model.named_parameters():
        if p.ndim == 1:
            assert bool((p == 1).all()), name
            continue
        expected = p.shape[1] ** -0.5
        if name.endswith(("out.weight", "down.weight")):
            expected /= 16**0.5
        assert abs(p.std().item() / expected - 1) < 0.03, name
        assert abs(p.mean().item()) < 0.1 * expected, name


def test_loss_at_init_is_near_the_uniform_guess():
    loss = model_of(vocab=1000)(TOKENS, TOKENS.flip(0) + 500).item()  # not the inputs, which a tied head favours
    assert 6.9 < loss < 8.1  # ln 1000 + 1/2 for logits of unit variance, and the noise of 24 targets


def test_a_token_does_not_see_the_future():
    model = model_of("block", n_layers=4)
    before = model.logits(TOKENS)
    changed = TOKENS.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    after = model.logits(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=0)
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_rotary_scores_depend_on_distance_only():
    cos, sin = (table.double() for table in rotary_tables(8, 20, 10_000.0))
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(8, generator=generator, dtype=torch.float64).expand(1, 1, 20, 8) for _ in range(2))
    scores = (rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(-1, -2))[0, 0]
    for distance in (0, 3, 11):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert not torch.allclose(scores.diagonal(0)[:1], scores.diagonal(-3)[:1])


def test_grouped_heads_equal_full_heads_with_repeated_keys():
    grouped, full = model_of(n_kv_heads=2), model_of()
    state = grouped.state_dict()
    for name in list(state):
        if name.endswith(("key.weight", "value.weight")):
            state[name] = state[name].view(2, 16, 32).repeat_interleave(2, dim=0).reshape(64, 32)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped.logits(TOKENS), full.logits(TOKENS), rtol=1e-5, atol=1e-5)


def test_tied_head_is_one_tensor_and_untied_two():
    assert sum(p.numel() for p in model_of().parameters()) + 50 * 32 == sum(
        p.numel() for p in model_of(tied_head=False).parameters()
    )


def test_forward_is_the_mean_cross_entropy():
    model = model_of("full")
    expected = F.cross_entropy(model.logits(TOKENS).reshape(-1, 50), TOKENS.reshape(-1))
    torch.testing.assert_close(model(TOKENS, TOKENS), expected)
