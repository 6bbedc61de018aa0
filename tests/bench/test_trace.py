"""A trace adds up: what stages add to the critical path is what a pass takes."""

import numpy as np

from monolane.bench import trace
from monolane.bench.shapes import SHAPES, MadeUpWeights
from monolane.model.weights import check_weights
from monolane.program.build import build_program


def test_a_table_of_made_up_stamps_adds_up() -> None:
    program = build_program(SHAPES["smollm2-135m"])
    stages = len(program.stages)
    stamps = np.zeros((3, 2, stages, 3), np.int64)
    for stage in range(
        3 * stages
    ):  # every stage takes 1,000 ns, a quarter of it for its input; worker 1 is 100 ns late
        begin = 1_000_000 + 1000 * stage
        stamps[stage // stages, 0, stage % stages] = (begin, begin + 250, begin + 900)
        stamps[stage // stages, 1, stage % stages] = (begin, begin + 250, begin + 1000)
    head, *rows = trace._table(program, stamps)
    assert head.split()[0] == "stage"
    total = sum(float(row.split()[3]) for row in rows)
    assert abs(total - stages) < 0.5
    qkv = next(row.split() for row in rows if row.startswith("qkv"))
    assert qkv[1:] == ["30", "1.00", "30.0", "0.25", "0.70", "0.75"]


def test_made_up_weights_fit_their_shapes() -> None:
    for config in SHAPES.values():
        weights = MadeUpWeights(config)
        check_weights(config, weights)
        rows = weights.rows("layers.0.down", 3, 5)
        assert rows.shape == (2, config.ffn)
        np.testing.assert_array_equal(rows[0], weights.rows("layers.0.down", 3, 4)[0])
