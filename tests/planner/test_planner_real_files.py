"""The planner's sizes compared with real files, and with the bytes that the engine streams and keeps for them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import gguf
import pytest
from tiny_models import GgufModel

from monolane.bench.measure.shapes import SHAPES
from monolane.model.data_file import DataFile
from monolane.model.gguf_file import read_gguf
from monolane.model.load import load_config, load_config_and_formats
from monolane.model.tensors import StoredTensor
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.footprint import Footprint, footprint
from monolane.planner.parts import Part
from monolane.planner.shape import shape_of
from monolane.planner.source import Described, describe, from_entry, gguf_part
from monolane.progress import Silent
from monolane.target import plan_for
from thorough import seldom

Kind = gguf.GGMLQuantizationType


@pytest.fixture(params=["default_model_path", seldom("coder_model_path")])
def path(request: pytest.FixtureRequest) -> Path:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Path)
    return found


def tensors_of(path: Path) -> dict[str, StoredTensor]:
    with DataFile(path) as file:
        return read_gguf(file).tensors


def weigh(described: Described, dtype: str, context: int = 0) -> Footprint:
    return footprint(described.shape, described.precision(dtype), context, lanes=1)


def streamed(counted: Footprint) -> float:
    return sum(row.active for row in counted.rows if row.part in (Part.ATTENTION, Part.DENSE, Part.HEAD))


def test_every_element_of_the_file_is_in_its_part(path: Path) -> None:
    found: Counter[str] = Counter()
    for name, tensor in tensors_of(path).items():
        found[gguf_part(name, tensor)] += math.prod(tensor.shape)
    counted = {row.part: row.parameters for row in weigh(describe(str(path)), "published").rows if row.parameters}
    assert counted == {part.value: count for part, count in found.items()}


def test_low_bit_weights_have_the_bytes_that_the_engine_streams(path: Path) -> None:
    config, formats = load_config_and_formats(path, None, Silent())
    engine = plan_for(config, workers=2, formats=formats)
    counted = weigh(describe(str(path)), "published")
    assert streamed(counted) == pytest.approx(engine.bytes_per_token, rel=1e-3)
    stored = sum(tensor.size for tensor in tensors_of(path).values())
    assert stored - 1 <= counted.total.held < 1.03 * stored  # our super-blocks have scales of 8 bits instead of 6


def test_bytes_per_token_and_of_the_cache_are_those_of_the_engine(path: Path) -> None:
    engine = plan_for(load_config(path), workers=2)
    counted = weigh(describe(str(path)), "bf16", context=1000)
    assert streamed(counted) == engine.bytes_per_token
    assert counted.cache.held == engine.program.cache_bytes(1000)
    assert describe(str(path)).shape.handoffs == engine.program.handoffs


@pytest.mark.parametrize(
    ("architecture", "kind"), [("qwen3moe", Kind.Q4_K), ("qwen2moe", Kind.Q8_0), ("llama", Kind.Q6_K)]
)
def test_experts_of_a_file_are_counted_as_the_engine_streams_and_keeps_them(
    tmp_path: Path, architecture: str, kind: Kind
) -> None:
    path = GgufModel(architecture, kind, 4).write(tmp_path / "model.gguf")
    config, formats = load_config_and_formats(path, None, Silent())
    engine = plan_for(config, workers=2, formats=formats)
    counted = weigh(describe(str(path)), "published")
    assert {"routed experts", "router"} <= {row.part for row in counted.rows}
    rest = (Part.EMBEDDING, Part.SMALL)
    matrices = [row for row in counted.rows if row.part not in rest]
    assert sum(row.active for row in matrices) == pytest.approx(engine.bytes_per_token, rel=0.02)
    assert sum(row.held for row in matrices) == pytest.approx(engine.resident_bytes, rel=0.02)
    assert describe(str(path)).shape.handoffs == engine.program.handoffs


@pytest.mark.parametrize("name", sorted(SHAPES.keys() & CATALOGUE.keys()))
def test_a_shape_of_the_benchmarks_is_the_model_of_the_catalogue(name: str) -> None:
    """A result names its model: the planner must count the same layers."""
    measured, known = shape_of(SHAPES[name]), from_entry(CATALOGUE[name]).shape
    assert (measured.layers, measured.hidden, measured.vocab) == (known.layers, known.hidden, known.vocab)


@pytest.mark.parametrize(
    ("name", "fixture"), [("smollm2-135m", "default_model_path"), seldom("qwen2.5-coder-1.5b", "coder_model_path")]
)
def test_the_catalogue_knows_the_same_layers_as_the_file(
    name: str, fixture: str, request: pytest.FixtureRequest
) -> None:
    known, found = from_entry(CATALOGUE[name]).shape, describe(str(request.getfixturevalue(fixture))).shape
    assert (known.layers, known.hidden, known.vocab) == (found.layers, found.hidden, found.vocab)
    assert known.active_parameters == found.active_parameters  # a file may have its head apart
