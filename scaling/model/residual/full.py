"""Full Attention Residuals: depth attention over the embedding and every earlier sublayer's output."""

from scaling.model.residual.block import AttentionResiduals, block_ends
from scaling.model.residual.read_variants import ReadOptions


class Full(AttentionResiduals, name="full"):
    """Attention Residuals with one sublayer a block (arXiv 2603.15031: N = L gives Full).

    Options: `window`, and those that `block` has in common with it; all are those of `ReadOptions`.
    """

    def __init__(
        self,
        n_sublayers: int,
        d_model: int,
        eps: float,
        *,
        query: str = "static",
        mixing: str = "attention",
        activation: str = "softmax",
        key_norm: bool = True,
        n_heads: int = 1,
        window: int | None = None,
    ) -> None:
        options = ReadOptions(query, mixing, activation, key_norm, n_heads, window)
        super().__init__(n_sublayers, d_model, eps, block_ends(n_sublayers, block_size=1), options)
