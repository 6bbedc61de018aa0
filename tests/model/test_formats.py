"""Low-bit formats hold exactly what a file holds: every GGUF type against the gguf package's own widening."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray
from tiny_models import GgufModel

from monolane.model.format import BF16, FORMATS
from monolane.model.gguf_blocks import REPACKED
from monolane.model.gguf_weights import open_gguf

Kind = gguf.GGMLQuantizationType
HALVES = {  # where a block has its fp16 numbers: (first byte, how many)
    "Q4_0": (0, 1), "Q5_0": (0, 1), "Q8_0": (0, 1), "IQ4_NL": (0, 1), "IQ4_XS": (0, 1), "Q4_1": (0, 2), "Q5_1": (0, 2),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, 1), "Q3_K": (108, 1),
}  # fmt: skip


def random_blocks(name: str, scale: float, rows: int = 5, blocks: int = 6) -> NDArray[np.uint8]:
    """Blocks of random bytes, but for their fp16 numbers; every third block has zeros there."""
    random = np.random.default_rng(len(name))
    raw = random.integers(0, 256, (rows, blocks, gguf.GGML_QUANT_SIZES[Kind[name]][1]), np.uint8)
    if name == "MXFP4":
        raw[..., 0] = random.integers(60, 190, raw.shape[:2])
        return raw
    first, count = HALVES[name]
    numbers = (random.normal(0, scale, (rows, blocks, count))).astype("<f2")
    numbers[:, ::3] = 0
    raw[..., first : first + 2 * count] = numbers.view(np.uint8)
    return raw


@pytest.mark.parametrize("scale", [0.01, 6e-8, 16000.0], ids=["usual", "subnormal", "largest"])
@pytest.mark.parametrize("name", REPACKED)
def test_repacked_blocks_have_the_values_of_the_file(name: str, scale: float) -> None:
    raw = random_blocks(name, scale)
    format, repack = REPACKED[name]
    rows = repack(raw)
    expected = dequantize(raw.reshape(len(raw), -1), Kind[name])
    assert rows.format is format
    np.testing.assert_array_equal(rows.values(expected.shape[1]), expected)


def test_no_format_needs_much_more_than_the_file() -> None:
    for name, (format, _) in REPACKED.items():
        block, size = gguf.GGML_QUANT_SIZES[Kind[name]]
        assert format.bits <= 8 * size / block + (1.2 if name == "Q3_K" else 0.33), name
    assert FORMATS["u4k32"].row_bytes(256) == 148
    assert BF16.bits == 16


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q6_K", "Q8_0"])
def test_a_file_keeps_its_formats(tmp_path: Path, kind: str) -> None:
    """Also the rows of q and k, which the file has in another order."""
    model = GgufModel(kind=Kind[kind])
    model.tensors["blk.1.ffn_down.weight"] = (model.values("blk.1.ffn_down.weight").astype(np.float32), Kind.F32)
    _, weights, _ = open_gguf(model.write(tmp_path / "model.gguf"))
    assert weights.format("layers.0.q") == REPACKED[kind][0]
    assert weights.format("layers.1.down") == BF16
    assert weights.widened == ()
    for name in ("layers.0.q", "layers.1.v", "embed"):
        rows, cols = weights.shape(name)
        whole = weights.quants(name, 0, rows).values(cols)
        np.testing.assert_allclose(whole, _bf16(weights.rows(name, 0, rows)), rtol=1 / 256)
        np.testing.assert_array_equal(weights.quants(name, 3, 37).values(cols), whole[3:37])


def _bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_what_no_format_holds_is_widened_and_named(tmp_path: Path) -> None:
    model = GgufModel()
    model.tensors["blk.1.ffn_up.weight"] = (np.zeros((512, 84), np.uint8), Kind.Q2_K)
    small, large = random_blocks("MXFP4", 1.0, 512, 8), random_blocks("MXFP4", 1.0, 512, 8)
    small[3, 1, 0] = 1  # a scale of 2^-126
    large[3, 1, 0] = 200  # a scale of 2^73, which the format holds
    model.tensors["blk.1.ffn_gate.weight"] = (small.reshape(512, -1), Kind.MXFP4)
    model.tensors["blk.0.ffn_gate.weight"] = (large.reshape(512, -1), Kind.MXFP4)
    _, weights, _ = open_gguf(model.write(tmp_path / "model.gguf"))
    assert weights.widened == ("MXFP4", "Q2_K")
    assert weights.format("layers.0.gate").name == "fp4e32"
    held = weights.quants("layers.0.gate", 3, 4).values(256)[0, 32:64]
    np.testing.assert_array_equal(held, dequantize(large[3], Kind.MXFP4).reshape(-1)[32:64])
    assert weights.format("layers.1.up") == weights.format("layers.1.gate") == BF16
    assert weights.rows("layers.1.up", 0, 512).shape == (512, 256)
