"""Folders with quantised weights: GPTQ, AWQ, compressed-tensors and FP8, as their tools write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tiny_models import change_config, save_huggingface

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.format import BF16
from monolane.model.huggingface import open_folder
from monolane.model.huggingface_quants import QuantisedFolder
from monolane.model.weights import Weights, check_weights, from_bf16, matrix_values

SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 64,
}  # fmt: skip
BASE, NAME, ROWS, COLS = "model.layers.0.mlp.down_proj", "layers.0.down", 256, 384
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Ints = NDArray[np.int64]


def words(values: Ints, axis: int, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Integers packed into 32-bit words along an axis; ``order``: which of them each place of a word has."""
    per_word = 32 // bits
    values = np.moveaxis(values, axis, -1).reshape(*np.moveaxis(values, axis, -1).shape[:-1], -1, per_word)
    places = order or tuple(range(per_word))
    packed = sum(
        values[..., column].astype(np.uint64) << np.uint64(bits * place) for place, column in enumerate(places)
    )
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed.astype(np.uint32).view(np.int32), -1, axis)))


def random_parts(group: int, bits: int = 4, seed: int = 0) -> tuple[Ints, Ints, NDArray[np.float16]]:
    """Integers [row][column], zero points and scales [row][group]."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (ROWS, COLS))
    zeros = random.integers(1, 1 << bits, (ROWS, COLS // group))
    return codes, zeros, random.uniform(0.001, 0.01, zeros.shape).astype(np.float16)


def expected(codes: Ints, zeros: Ints, scales: NDArray[np.generic], groups: Ints) -> NDArray[np.float32]:
    return (scales.astype(np.float32)[:, groups] * (codes - zeros[:, groups])).astype(np.float32)


def opened(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Weights:
    """A model in which one matrix is replaced by those tensors."""
    save_huggingface(folder, **SIZES)
    stored = load_file(folder / "model.safetensors")
    del stored[f"{BASE}.weight"]
    save_file(
        stored | {f"{BASE}.{name}": tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    change_config(folder, quantization_config=config)
    model, weights = open_folder(folder)
    check_weights(model, weights)
    assert weights.format("layers.0.up") == BF16
    return weights


def check(weights: Weights, format: str, values: NDArray[np.float32]) -> None:
    assert weights.format(NAME).name == format
    np.testing.assert_array_equal(matrix_values(weights, NAME, 0, ROWS), values)
    np.testing.assert_array_equal(matrix_values(weights, NAME, 9, 77), values[9:77])
    assert (weights.widened == ()) == (format != "bf16")


@pytest.mark.parametrize(("bits", "group", "format"), [(4, 128, "u4g32z"), (4, COLS, "u4g32z"), (8, 32, "i8g32z")])
def test_gptq(tmp_path: Path, bits: int, group: int, format: str) -> None:
    codes, zeros, scales = random_parts(group, bits)
    tensors = {
        "qweight": words(codes.T, 0, bits),
        "qzeros": words(zeros.T - 1, 1, bits),  # its first version stores one less
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.arange(COLS, dtype=torch.int32) // group,
    }
    weights = opened(tmp_path, {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False}, tensors)
    check(weights, format, expected(codes, zeros, scales, np.arange(COLS) // group))


def act_order(seed: int, group: int = 128) -> Ints:
    """The group of each column, as GPTQ leaves them when it takes the columns in the order of activations."""
    return np.random.default_rng(seed).permutation(np.arange(COLS) // group)


def gptq_tensors(group_of: Ints, rows: int = ROWS) -> tuple[dict[str, torch.Tensor], NDArray[np.float32]]:
    codes, zeros, scales = (part[:rows] for part in random_parts(128))
    tensors = {
        "qweight": words(codes.T, 0, 4),
        "qzeros": words(zeros.T, 1, 4),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.from_numpy(group_of.astype(np.int32)),
    }
    return tensors, expected(codes, zeros, scales, group_of)


ACT_ORDER = {"quant_method": "gptq", "bits": 4, "desc_act": True, "checkpoint_format": "gptq_v2"}


def test_gptq_in_the_order_of_activations(tmp_path: Path) -> None:
    """Columns are sorted by group, and the order says where they were."""
    tensors, values = gptq_tensors(act_order(1))
    weights = opened(tmp_path, ACT_ORDER, tensors)
    check(weights, "u4g32z", values)
    assert weights.format(NAME).ordered
    order = weights.vector(f"{NAME}.order").astype(np.int64)
    np.testing.assert_array_equal(np.sort(order), np.arange(COLS))
    np.testing.assert_array_equal(weights.quants(NAME, 3, 9).values(COLS), values[3:9, order])
    np.testing.assert_allclose(from_bf16(weights.rows(NAME, 3, 9)), values[3:9], rtol=1 / 256)


def test_groups_of_different_sizes_are_widened(tmp_path: Path) -> None:
    group_of = act_order(1)
    group_of[np.flatnonzero(group_of == 2)[0]] = 1
    tensors, values = gptq_tensors(group_of)
    weights = opened(tmp_path, ACT_ORDER, tensors)
    assert weights.format(NAME) == BF16
    assert weights.widened
    np.testing.assert_allclose(from_bf16(weights.rows(NAME, 5, 90)), values[5:90], rtol=1 / 256)


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2), (1, None)], ids=["the same", "different", "one has none"])
def test_matrices_with_the_same_input(tmp_path: Path, seeds: tuple[int, int | None]) -> None:
    """Gate and up share the order of their input, or are widened."""
    save_huggingface(tmp_path, **SIZES | {"hidden_size": COLS, "intermediate_size": ROWS, "num_attention_heads": 6})
    stored = load_file(tmp_path / "model.safetensors")
    for name, seed in zip(("gate", "up"), seeds, strict=True):
        base = f"model.layers.0.mlp.{name}_proj"
        del stored[f"{base}.weight"]
        tensors, _ = gptq_tensors(np.arange(COLS) // 128 if seed is None else act_order(seed))
        stored |= {f"{base}.{ending}": tensor.contiguous() for ending, tensor in tensors.items()}
    save_file(stored, tmp_path / "model.safetensors")
    change_config(tmp_path, quantization_config=ACT_ORDER)
    _, weights = open_folder(tmp_path)
    formats = [weights.format(f"layers.0.{name}") for name in ("gate", "up")]
    assert [format.ordered for format in formats] == [seeds == (1, 1)] * 2
    assert (formats[0] == BF16) == (seeds != (1, 1))
    assert (weights.widened == ()) == (seeds == (1, 1))


def test_awq(tmp_path: Path) -> None:
    codes, zeros, scales = random_parts(64)
    tensors = {
        "qweight": words(codes.T, 1, 4, AWQ_ORDER),
        "qzeros": words(zeros.T, 1, 4, AWQ_ORDER),
        "scales": torch.from_numpy(scales.T.copy()),
    }
    weights = opened(tmp_path, {"quant_method": "awq", "bits": 4, "version": "gemm"}, tensors)
    check(weights, "u4g32z", expected(codes, zeros, scales, np.arange(COLS) // 64))


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_of_four_bits(tmp_path: Path, symmetric: bool) -> None:
    codes, zeros, scales = random_parts(128)
    tensors = {
        "weight_packed": words(codes, 1, 4),
        "weight_scale": torch.from_numpy(scales).to(torch.bfloat16),
        "weight_shape": torch.tensor([ROWS, COLS]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros, 0, 4)
    zeros = np.full_like(zeros, 8) if symmetric else zeros
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    weights = opened(tmp_path, config, tensors)
    rounded = torch.from_numpy(scales).to(torch.bfloat16).float().numpy()
    check(weights, "i4g32" if symmetric else "u4g32z", expected(codes, zeros, rounded, np.arange(COLS) // 128))


def test_compressed_tensors_of_eight_bits(tmp_path: Path) -> None:
    codes, _, scales = random_parts(COLS, 8)
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}
    tensors = {
        "weight": torch.from_numpy((codes - 128).astype(np.int8)),
        "weight_scale": torch.from_numpy(scales),
    }
    weights = opened(tmp_path, config, tensors)
    check(weights, "i8g32", expected(codes, np.full((ROWS, 1), 128), scales, np.zeros(COLS, np.int64)))


FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
COMPRESSED_FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
}


def fp8_tensors(shape: tuple[int, ...]) -> tuple[dict[str, torch.Tensor], NDArray[np.float32]]:
    """Tensors of a matrix whose scales have that shape, and its weights."""
    torch.manual_seed(0)
    matrix, scales = (100 * torch.randn(ROWS, COLS)).to(torch.float8_e4m3fn), torch.rand(shape) + 0.5
    in_blocks = len(shape) == 2 and shape[1] > 1
    name = "weight_scale_inv" if in_blocks else "weight_scale"
    sizes = [COLS // shape[1]] * 2 if in_blocks else [1, 1]
    whole = scales.repeat_interleave(sizes[0], 0).repeat_interleave(sizes[1], 1) if in_blocks else scales
    return {"weight": matrix, name: scales, "input_scale": torch.tensor(3.0)}, (matrix.float() * whole).numpy()


@pytest.mark.parametrize(
    ("config", "shape"),
    [(FP8, (1,)), (FP8, ()), (FP8, (2, 3)), (COMPRESSED_FP8, (ROWS, 1)), (COMPRESSED_FP8, (ROWS,))],
    ids=["one scale", "a number", "blocks", "rows", "a vector of rows"],
)
def test_fp8(tmp_path: Path, config: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Scales of activations are not used."""
    tensors, values = fp8_tensors(shape if shape != (ROWS,) else (ROWS, 1))
    tensors = {name: tensor.reshape(shape) if name == "weight_scale" else tensor for name, tensor in tensors.items()}
    weights = opened(tmp_path, config, tensors)
    check(weights, "e4m3k128", values)
    assert isinstance(weights, QuantisedFolder)
    assert weights.dtype == "fp8"


def test_fp8_has_the_values_of_torch(tmp_path: Path) -> None:
    """Every code, subnormal numbers and negative zero among them, and a NaN, which no weight is."""
    tensors, _ = fp8_tensors((1,))
    codes = torch.arange(ROWS * COLS).to(torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    tensors["weight"] = codes.view(torch.float8_e4m3fn).reshape(ROWS, COLS)
    tensors["weight_scale"] = torch.tensor(1.0)
    check(opened(tmp_path, FP8, tensors), "e4m3k128", tensors["weight"].float().numpy())
    codes[7 * COLS + 3] = 0xFF
    weights = opened(tmp_path, FP8, tensors)
    weights.quants(NAME, 0, 7)
    with pytest.raises(ModelFileError, match=r"down_proj.weight.*not numbers"):
        weights.quants(NAME, 0, 8)


def test_fp8_with_other_blocks_is_refused(tmp_path: Path) -> None:
    tensors, _ = fp8_tensors((4, 6))
    with pytest.raises(UnsupportedModelError, match=r"down_proj.weight.*\(4, 6\)"):
        opened(tmp_path, FP8, tensors)


def test_scales_that_fp16_does_not_hold_are_widened(tmp_path: Path) -> None:
    codes, _, scales = random_parts(COLS, 8)
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}
    tensors = {
        "weight": torch.from_numpy((codes - 128).astype(np.int8)),
        "weight_scale": torch.from_numpy(scales.astype(np.float32) * 1.0001),
    }
    assert opened(tmp_path, config, tensors).format(NAME) == BF16


@pytest.mark.parametrize(
    "config",
    [{"quant_method": "bitsandbytes"}, {"quant_method": "gptq", "bits": 3}, {"quant_method": "awq", "version": "gemv"}],
)
def test_other_methods_are_refused_by_name(tmp_path: Path, config: dict[str, Any]) -> None:
    save_huggingface(tmp_path, **SIZES)
    change_config(tmp_path, quantization_config=config)
    with pytest.raises(UnsupportedModelError, match=config["quant_method"]):
        open_folder(tmp_path)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    codes, zeros, scales = random_parts(128)
    tensors = {
        "qweight": words(codes.T, 0, 4),
        "qzeros": words(zeros.T, 1, 4),
        "scales": torch.from_numpy(scales.T[:1].copy()),
    }
    with pytest.raises(ModelFileError, match="down_proj"):
        opened(tmp_path, {"quant_method": "gptq", "bits": 4}, tensors)
