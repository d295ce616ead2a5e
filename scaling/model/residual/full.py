"""Full Attention Residuals: depth attention over the embedding and every earlier sublayer's output."""

from scaling.model.residual.block import Block


class Full(Block, name="full"):
    """Block Attention Residuals with one sublayer a block (PAPER section 1: N = L gives Full)."""

    def __init__(self, n_sublayers: int, d_model: int, eps: float) -> None:
        super().__init__(n_sublayers, d_model, eps, block_size=1)
