"""The two kinds of feed-forward networks: dense ones, and experts, of which a token reads a few."""

from __future__ import annotations

from dataclasses import dataclass

from monolane.planner.parts import Part, Weights, matrix, small

MATRICES = 3  # gate, up and down


@dataclass(frozen=True)
class Dense:
    ffn: int
    bias: bool = False

    stages = 2  # gate and up, down
    blind = 0

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        matrices = matrix(Part.DENSE, MATRICES * hidden * self.ffn, self.ffn)
        return matrices, small((2 * self.ffn + hidden) * self.bias)


@dataclass(frozen=True)
class Experts:
    """``count`` experts, of which a token reads ``chosen``, and shared experts, which every token reads."""

    count: int
    chosen: int
    ffn: int  # FFN size of one expert
    shared: int = 0  # FFN size of all shared experts together
    shared_gate: bool = False
    bias: bool = False
    hashed: bool = False  # the experts follow from the token itself, and not from the router's output

    stages = 3  # router, gate and up, down

    @property
    def blind(self) -> int:
        return 0 if self.hashed else 1

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        one = MATRICES * hidden * self.ffn
        biases = (2 * self.ffn + hidden) * self.bias
        return (
            Weights(Part.ROUTED, self.count * one, self.chosen * one, self.ffn),
            *([matrix(Part.SHARED, MATRICES * hidden * self.shared, self.shared)] if self.shared else []),
            matrix(Part.ROUTER, self.count * hidden, 1),
            Weights(Part.SMALL, self.count * biases, self.chosen * biases),
            small(hidden * self.shared_gate + self.count * self.bias),
        )
