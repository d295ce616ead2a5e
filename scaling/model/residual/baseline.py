"""The standard residual stream: h_{l+1} = h_l + f_l(h_l)."""

from torch import Tensor

from scaling.model.residual.scheme import ResidualScheme


class Baseline(ResidualScheme, name="baseline"):
    """Fixed unit weights on the embedding and every earlier output; the state is their sum."""

    def start(self, embedding: Tensor) -> Tensor:
        """The embedding (B, T, D)."""
        return embedding

    def read(self, state: Tensor, sublayer: int) -> Tensor:
        """The sum so far (B, T, D)."""
        return state

    def write(self, state: Tensor, sublayer: int, output: Tensor) -> Tensor:
        """The sum with the output in it (B, T, D)."""
        return state + output

    def finish(self, state: Tensor) -> Tensor:
        """The whole sum (B, T, D)."""
        return state

    @property
    def flops_per_token(self) -> int:
        """None: additions are not counted."""
        return 0
