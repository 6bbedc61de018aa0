"""Errors of the commands with real files: the message, the hint, the exit code, and no files left behind."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Outcome, monolane

from monolane.errors import FetchError, ModelFileError, MonolaneError, ResourceError, UnsupportedModelError, UsageError

GENERATE = ("--prompt", "Hello", "--max-tokens", "2")
HEADER_BYTES = 4 << 20  # the default model's metadata and list of tensors lie well within


def refused(outcome: Outcome, error: type[MonolaneError], *says: str) -> None:
    """The command ended with this error: what was wrong on one line, what to do on the next, nothing on stdout."""
    assert outcome.code == error.exit_code, outcome.err
    assert outcome.out == ""
    assert re.search(r"^error: .+\n.+", outcome.err, re.MULTILINE)
    assert "Traceback" not in outcome.err
    for text in says:
        assert text in outcome.err


def changed(original: Path, copy: Path, change: Callable[[bytes], bytes]) -> Path:
    """A model file with another header, of the same size; its weights are holes, as nobody gets to read them."""
    with original.open("rb") as file:
        header = change(file.read(HEADER_BYTES))
    assert len(header) == HEADER_BYTES
    with copy.open("wb") as file:
        file.write(header)
        file.truncate(original.stat().st_size)
    return copy


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(header: bytes) -> bytes:
        assert header.count(old) >= 1
        return header.replace(old, new, 1)

    return change


def with_number(key: bytes, value: int) -> Callable[[bytes], bytes]:
    """Another value for a key that holds an unsigned number of 32 bits."""

    def change(header: bytes) -> bytes:
        place = header.index(key) + len(key) + 4  # behind the key comes its type, in four bytes
        return header[:place] + struct.pack("<I", value) + header[place + 4 :]

    return change


@pytest.mark.parametrize("kept", [0, 3, 1000, 50_000_000, 98_000_000])
def test_a_truncated_file(kept: int, default_model_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with default_model_path.open("rb") as file:
        cut.write_bytes(file.read(kept))
    refused(monolane("generate", cut, *GENERATE), ModelFileError, "cut.gguf", "fetch")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (replaced(b"GGUF", b"GGUX"), ModelFileError, "no GGUF file"),
        (replaced(b"GGUF\x03", b"GGUF\x09"), UnsupportedModelError, "version 9"),
        (replaced(b"general.architecture", b"general.architectur\xff"), ModelFileError, "UTF-8"),
        (replaced(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma"), UnsupportedModelError, "'gemma'"),
        (replaced(b"blk.7.attn_q.weight", b"blk.7.attn_x.weight"), ModelFileError, "'blk.7.attn_q.weight' is missing"),
        (with_number(b"llama.feed_forward_length", 1544), ModelFileError, "[1544, 576]"),
        (with_number(b"llama.block_count", 31), ModelFileError, "blk.30."),
        (with_number(b"llama.block_count", 2**32 - 1), ModelFileError, "4294967295"),
        (with_number(b"llama.attention.head_count", 0), ModelFileError, "head"),
    ],
    ids=["magic", "version", "text", "family", "missing", "shape", "layers", "huge", "zero"],
)
def test_a_changed_header(
    change: Callable[[bytes], bytes],
    error: type[MonolaneError],
    says: str,
    default_model_path: Path,
    tmp_path: Path,
) -> None:
    model = changed(default_model_path, tmp_path / "changed.gguf", change)
    cache = tmp_path / "cache"
    refused(monolane("generate", model, *GENERATE, MONOLANE_CACHE=str(cache)), error, says)
    assert not cache.exists()


def test_a_folder_of_an_unknown_family(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}))
    refused(monolane("generate", tmp_path, *GENERATE), UnsupportedModelError, "'mamba'", "llama")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    refused(monolane("generate", tmp_path, *GENERATE), ModelFileError, "config.json")


def test_an_unknown_model() -> None:
    refused(monolane("generate", "smollm2-135", *GENERATE), UsageError, "Did you mean smollm2-135m?")


def test_a_context_that_is_too_large(default_model_path: Path) -> None:
    refused(monolane("generate", default_model_path, *GENERATE, "--context", "1000000"), UsageError, "1000000", "8192")


def test_a_prompt_longer_than_the_context(default_model_path: Path) -> None:
    long = monolane("generate", default_model_path, "--prompt", "word " * 100, "--context", "50")
    refused(long, UsageError, "tokens", "50", "--context")


def test_an_empty_prompt(default_model_path: Path) -> None:
    refused(monolane("generate", default_model_path, "--prompt", ""), UsageError, "empty")


def test_no_network(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), nowhere)
    index = {"PIP_INDEX_URL": f"{nowhere}/simple", "PIP_CONFIG_FILE": "/dev/null", "NO_PROXY": "", "no_proxy": ""}
    outcome = monolane("pull", "smollm2-135m", MONOLANE_CACHE=str(tmp_path), **proxies, **index)
    refused(outcome, FetchError, "could not be fetched", "Check the network")
    assert [file for file in tmp_path.rglob("*") if file.is_file() and file.stat().st_size] == []


def tiny_disk(folder: Path, size: str) -> tuple[str, ...]:
    """A program that runs another one with a small file system of its own on ``folder``, and lists what it left."""
    mount = f'mount -t tmpfs -o size={size} none "{folder}"'
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("this machine does not let us mount a small file system")
    script = f'{mount}; "$@"; code=$?; find "{folder}" -type f -size +0; exit $code'
    return "unshare", "-rm", "sh", "-c", script, "sh"


def test_no_room_for_the_model(tmp_path: Path) -> None:
    outcome = monolane("pull", "smollm2-135m", within=tiny_disk(tmp_path, "1m"), MONOLANE_CACHE=str(tmp_path))
    refused(outcome, ResourceError, "disk space", "MONOLANE_CACHE")


def test_no_room_for_the_kernel(default_model_path: Path, tmp_path: Path) -> None:
    words = ("generate", default_model_path, *GENERATE)
    outcome = monolane(*words, within=tiny_disk(tmp_path, "16k"), MONOLANE_CACHE=str(tmp_path))
    refused(outcome, ResourceError, "disk is full", "MONOLANE_CACHE")


def test_no_room_to_keep_the_tape_is_no_reason_to_fail(default_model_path: Path, tmp_path: Path) -> None:
    words = ("generate", default_model_path, *GENERATE)
    outcome = monolane(*words, within=tiny_disk(tmp_path, "1m"), MONOLANE_CACHE=str(tmp_path))
    assert outcome.code == 0
    assert "error" not in outcome.err
    kept = outcome.out.split(str(tmp_path))[1:]
    assert len(kept) == 2  # the kernel and its hash
    assert kept[0].startswith("/kernels/")
