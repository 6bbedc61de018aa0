"""llama.cpp's CUDA back end as a peer: how it is built, what file it gets, and how its program is talked to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_gguf_checkpoint import small

from monolane.bench.measure.mixtures import MadeUpMixture
from monolane.bench.peers import llamacpp_build, llamacpp_cuda, registry
from monolane.bench.peers.llamacpp_cuda import LlamaCppCuda
from monolane.bench.peers.llamacpp_file import gguf_file
from monolane.bench.peers.peer import PeerMissingError, Wanted
from monolane.model.gguf_weights import open_gguf
from monolane.target.cuda import opening

# Says what it was started with, then answers as the real one does; asked for 5 tokens, it has only 4.
PROGRAM = """#!{python}
import sys
from pathlib import Path
if not Path(sys.argv[1]).stat().st_size:
    sys.exit("warming up\\nno model in it")
print("ready Made-up GPU", flush=True)
for line in sys.stdin:
    wanted, *prompt = map(int, line.split())
    print(*range(min(wanted, 4)), flush=True)
Path(sys.argv[1] + ".ended").touch()
"""

TOOL = """#!/bin/sh
echo {name} "$@" >> {log}
while [ "$1" ]; do
    [ "$1" = -B ] && mkdir -p "$2"
    [ "$1" = -o ] && echo made > "$2"
    shift
done
exit 0
"""


def wanted(path: Path | None = None, hidden: int = 256) -> Wanted:
    config = small("qwen2.5-coder-1.5b", layers=1, hidden=hidden)
    return Wanted(config, MadeUpMixture(config, "q4_k_m"), path, "cuda", 1, 64)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "llama_peer"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)

    class Gpu:
        capability = (9, 0)

    monkeypatch.setattr(opening, "required_gpu", Gpu)
    monkeypatch.setattr(llamacpp_build, "source", lambda: tmp_path)
    monkeypatch.setattr(llamacpp_cuda.llamacpp_build, "built", lambda folder, capability: path)
    return path


def test_it_is_asked_line_by_line_and_ends_when_it_is_closed(program: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_text("weights")
    peer = registry.MAKERS["llama.cpp"]["llama.cpp, same file"](wanted(model))
    assert isinstance(peer, LlamaCppCuda)
    peer.ask([1, 2, 3], 4)
    with pytest.raises(RuntimeError, match="made 4 tokens, not 5"):
        peer.ask([1, 2, 3], 5)
    peer.close()
    assert Path(f"{model}.ended").exists()


def test_one_that_does_not_start_is_a_reason_with_its_last_words(program: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(PeerMissingError, match="did not start: no model in it"):
        LlamaCppCuda(wanted(tmp_path / "model.gguf"), widened=False)


def test_a_shape_gets_a_file_with_its_own_weights(tmp_path: Path) -> None:
    asked = wanted()
    _, stored, _ = open_gguf(gguf_file(asked, False, tmp_path))
    assert (stored.rows("layers.0.q", 0, 8) == asked.weights.rows("layers.0.q", 0, 8)).all()
    for what, widened, why in (
        (asked, True, "one file"),
        (wanted(hidden=320), False, "blocks of 256"),
        (wanted(tmp_path), False, "needs a GGUF file"),
    ):
        with pytest.raises(PeerMissingError, match=why):
            gguf_file(what, widened, tmp_path)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A source, and tools that write down what they were asked to do; g++ also makes its file."""
    log = tmp_path / "log"
    for name in ("cmake", "ninja", "nvcc", "g++"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(TOOL.format(name=name, log=log))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "llama.cpp"
    (source / "ggml" / "src" / "ggml-cuda").mkdir(parents=True)
    monkeypatch.setenv(llamacpp_build.SOURCE, str(source))
    return log


def test_it_is_built_once_for_each_source_and_gpu(tools: Path) -> None:
    source = llamacpp_build.source()
    program = llamacpp_build.built(source, (9, 0))
    assert program.read_text() == "made\n"
    configured, *others = tools.read_text().splitlines()
    assert f"-S {source}" in configured
    assert configured.endswith("-DCMAKE_CUDA_ARCHITECTURES=90-real")
    assert [line.split()[0] for line in others] == ["cmake", "g++"]
    assert llamacpp_build.built(source, (9, 0)) == program
    assert len(tools.read_text().splitlines()) == 3  # nothing was built again
    assert llamacpp_build.built(source, (12, 0)) != program
    (source / "ggml" / "newer.cpp").write_text("int x;")
    assert llamacpp_build.built(source, (9, 0)) != program


def test_what_is_missing_or_fails_is_named(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = llamacpp_build.source()
    cmake = tools.parent / "bin" / "cmake"
    cmake.write_text("#!/bin/sh\necho looking around\necho 'CMake Error: no CUDA'\necho bye\nexit 1\n")
    with pytest.raises(PeerMissingError, match="cmake failed: CMake Error: no CUDA"):
        llamacpp_build.built(source, (9, 0))
    monkeypatch.setenv("PATH", str(tools.parent))
    with pytest.raises(PeerMissingError, match="cmake is needed"):
        llamacpp_build.built(source, (9, 0))
    monkeypatch.setenv(llamacpp_build.SOURCE, str(tools.parent))
    with pytest.raises(PeerMissingError, match="does not have llama"):
        llamacpp_build.source()
    monkeypatch.delenv(llamacpp_build.SOURCE)
    with pytest.raises(PeerMissingError, match="set MONOLANE_LLAMA_CPP"):
        llamacpp_build.source()
