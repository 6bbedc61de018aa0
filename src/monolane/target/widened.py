"""Tells the user which low-bit matrices are not used as they are stored."""

from __future__ import annotations

from monolane.model.weights import Weights
from monolane.program.stage import Program
from monolane.progress import Progress


def note_widened(program: Program, weights: Weights, progress: Progress) -> None:
    """Tell the user which low-bit matrices are not used as they are stored."""
    if weights.widened:
        progress.note(f"No low-bit format holds {', '.join(weights.widened)}: such matrices are widened to bf16.")
    matrices = [stage.matrix for stage in program.projections if not stage.matrix.format.is_low_bit]
    names = [name for matrix in matrices for name, _ in matrix.parts if not (program.lanes > 1 and name == "head")]
    if count := sum(weights.format(name).is_low_bit for name in names):
        progress.note(
            f"{count} low-bit matrices are widened to bf16: lanes cut their groups of columns, gate and up are "
            "stored in different formats, or not all layers have their columns in an order of their own."
        )
