"""The options of the benchmarks, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monolane.bench.measure import lengths, shapes
from monolane.bench.measure.run import Options
from monolane.bench.measure.subject import find_model
from monolane.bench.peers import registry
from monolane.errors import UsageError
from monolane.progress import Silent


def test_lengths_have_a_k_and_come_in_order() -> None:
    assert lengths.parse_lengths("32k, 0,1K,8k,1k", "--context") == (0, 1024, 8192, 32768)
    assert lengths.parse_lengths("", "--context") == ()
    assert [lengths.spelled(length) for length in (0, 500, 1024, 32768)] == ["0", "500", "1k", "32k"]


@pytest.mark.parametrize("text", ["x", "-1", "1m", "1.5k", "k", "999999999k", "1;2"])
def test_what_is_no_length_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"--context has '{text}'"):
        lengths.parse_lengths(f"0,{text}", "--context")


def test_peers_are_all_none_or_named() -> None:
    assert registry.parse("all") == ("torch.compile", "transformers", "llama.cpp", "vllm", "sglang")
    assert registry.parse("none") == registry.parse("") == ()
    assert registry.parse("vLLM, torch.compile,vllm") == ("vllm", "torch.compile")
    with pytest.raises(UsageError, match=r"no peer 'tensorrt'[\s\S]*llama\.cpp"):
        registry.parse("tensorrt")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rounds": 0}, "--rounds is 0"),
        ({"rounds": 10**9}, "--rounds"),
        ({"tokens": 1}, "between two tokens"),
        ({"tokens": 1 << 30}, "--tokens"),
        ({"workflow": 0}, "--workflow is 0"),
        ({"workflow": 9, "contexts": (2048, 4096)}, "one length"),
        ({"server": "http://x", "shape": "llama-3.2-1b"}, "Leave --shape"),
        ({"server": "http://x", "workflow": 100}, "--workflow"),
        ({"out": Path(__file__)}, "is a file"),
        ({"picture": Path("bench.jpg")}, "does not end in .png"),
        ({"picture": Path("no/where/bench.png")}, "no place for a file"),
    ],
)
def test_what_is_wrong_is_said_at_once(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Options(**wrong)
    assert says in str(caught.value)
    assert caught.value.hint


def test_a_model_or_a_shape_and_not_both() -> None:
    for model, shape in ((None, None), ("smollm2-135m", "llama-3.2-1b")):
        with pytest.raises(UsageError, match="not clear"):
            find_model(model, shape, Silent())
    with pytest.raises(UsageError, match=r"no shape 'llama-9'[\s\S]*laneformer-2b"):
        find_model(None, "llama-9", Silent())


def test_the_command_measures_the_same_again_and_keeps_the_key_to_itself() -> None:
    options = Options(
        server="http://h:1/v1", model="m n", api_key="secret", contexts=(0, 8192), rounds=2, out=Path("/tmp/elsewhere")
    )
    assert options.command == "monolane bench 'm n' --server http://h:1/v1 --context 0,8k --rounds 2"
    assert "secret" not in repr(options)
    assert Options(shape="s", workflow=50).command == "monolane bench --shape s --workflow 50"
    assert Options(shape="s", peers=()).command == "monolane bench --shape s --rounds 5 --peers none"


def test_a_shape_is_cut_to_its_first_layers() -> None:
    whole, cut = shapes.named("gpt-oss-20b"), shapes.named("gpt-oss-20b:4")
    assert (cut.layers, cut.windows, cut.hidden) == (4, whole.windows[:4], whole.hidden)
    assert cut.experts is not None
    assert len(cut.experts.layers) == 4
    for wrong in ("gpt-oss-20b:0", "gpt-oss-20b:25", "gpt-oss-20b:", "gpt-oss-20b:x"):
        with pytest.raises(UsageError, match="gpt-oss-20b has 24 layers"):
            shapes.named(wrong)
    with pytest.raises(UsageError, match="no shape 'gpt-7'"):
        shapes.named("gpt-7:2")
