"""If a GPU is present but not used, every command that opens a model says why, and what to do, in one line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_gpu
import pytest
from tiny_models import save_huggingface

from fake_model import byte_tokenizer
from monolane.bench.measure.shapes import MadeUpWeights
from monolane.engine.load_progress import LoadProgress
from monolane.errors import MonolaneError, ResourceError
from monolane.progress import Silent
from monolane.target import open_target
from monolane.target.cuda import opening, packages, presence
from monolane.target.cuda.cards import ARCHITECTURES
from monolane.target.cuda.presence import Presence, Unreachable
from random_models import CASES, random_model
from thorough import seldom

TINY = random_model(CASES[3]).config  # its kernel is that of other tests, too
NEW = Presence("NVIDIA H200", (9, 0), (13, 0))
OLD_CARD = Presence("NVIDIA GeForce RTX 4090", (8, 9), (13, 0))
OLD_DRIVER = Presence("NVIDIA H200", (9, 0), (12, 8))
BROKEN = Unreachable("its driver does not start: error 803 of cuInit")

Here = Presence | Unreachable | None


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Here, bool], None]:
    """Make this machine one with such a GPU, with the CUDA packages or without them."""

    def make(here: Here, with_packages: bool = True) -> None:
        monkeypatch.setattr(presence, "look", lambda: here)
        monkeypatch.setattr(packages, "installed", lambda: with_packages)

    return make


def notes_of_opening(device: str = "auto", workers: int | None = None) -> list[str]:
    progress = Notes()
    target = open_target(TINY, MadeUpWeights(TINY), device=device, workers=workers, context=64, progress=progress)
    assert target.name.startswith(("cpu", "interpreter"))
    target.close()
    return progress.notes


@pytest.mark.parametrize(
    ("here", "with_packages", "why", "what_to_do"),
    [
        (NEW, False, "NVIDIA H200 cannot be used: the CUDA packages are not installed", "-m pip install"),
        (OLD_DRIVER, True, "its driver knows CUDA 12.8", "driver to version 580"),
        (OLD_CARD, True, "NVIDIA GeForce RTX 4090 cannot be used: it has compute capability 8.9", "RTX 50xx"),
        (BROKEN, True, "error 803", "nvidia-smi"),
    ],
)
def test_why_a_gpu_is_not_used(machine: Any, here: Here, with_packages: bool, why: str, what_to_do: str) -> None:
    machine(here, with_packages)
    (line,) = notes_of_opening()
    assert why in line
    assert "Running on the CPU." in line
    assert what_to_do in line
    assert "\n" not in line
    assert notes_of_opening("cpu") == []  # that was asked for
    assert opening.find_gpu() is None
    with pytest.raises(MonolaneError) as refused:
        opening.required_gpu()
    assert why in refused.value.message
    assert what_to_do in refused.value.hint


def test_workers_are_of_the_cpu(machine: Any) -> None:
    machine(NEW, True)
    (line,) = notes_of_opening(workers=1)
    assert "NVIDIA H200 is not used" in line
    assert "--workers" in line


def test_nothing_is_said_where_there_is_no_gpu(machine: Any) -> None:
    machine(None, False)
    assert notes_of_opening() == notes_of_opening(workers=1) == []
    with pytest.raises(MonolaneError, match="no NVIDIA GPU"):
        opening.required_gpu()


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_a_card_of_the_table_is_used_and_all_but_one_are_untried(capability: tuple[int, int]) -> None:
    """As far as the model's memory: the fake has none."""
    progress = Notes()
    device: Any = SimpleNamespace(
        name="Card",
        processors=4,
        shared_limit=232448,
        capability=capability,
        architecture=ARCHITECTURES[capability],
        handle=0,
    )
    driver = pytest.importorskip("monolane.target.cuda.driver", reason="needs the CUDA packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "Context", lambda card: SimpleNamespace(device=card, free_memory=lambda: 0))
        with pytest.raises(ResourceError, match="Card has"):
            opening.open_cuda(TINY, MadeUpWeights(TINY), 64, device, progress)
    assert [note.startswith("Untried on this GPU: Card") for note in progress.notes] == [True] * (capability != (9, 0))


def test_the_command_that_is_named_installs_the_extra_of_the_package() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert extras["optional-dependencies"]["cuda"] == list(packages.REQUIRED)
    assert shlex.split(packages.how_to_install())[0] == sys.executable


def test_an_engine_that_restarts_does_not_repeat_itself() -> None:
    heard = Notes()
    progress = LoadProgress(heard)
    for text in ("one", "two", "one"):
        progress.note(text)
    assert heard.notes == ["one", "two"]


# --- the commands themselves, on a machine whose driver is a fake ---

LINE = "NVIDIA Fake 9000 cannot be used"
LOOK = (
    "from pathlib import Path; from monolane.target.cuda import presence\n"
    "presence.DEVICE_FILE = Path('{}'); print(presence.look())"
)
PYTHON = "import sys; from monolane import LLM\nfor _ in range(2): LLM(sys.argv[1], context=64).close()"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_gpu.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer()
    save_huggingface(folder, vocab_size=tokenizer.vocab_size)
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    return folder


@pytest.mark.parametrize("command", ["generate", "python", *map(seldom, ("chat", "trace", "inspect"))])
def test_every_command_says_it_once(command: str, library: Path, model: Path, tmp_path: Path) -> None:
    words = {
        "generate": ["generate", str(model), "-p", "Hi", "--max-tokens", "2"],
        "chat": ["chat", str(model), "--max-tokens", "2"],
        "trace": ["trace", str(model), "--tokens", "1"],
        "inspect": ["inspect", str(model)],
        "python": ["-c", PYTHON, str(model)],
    }[command]
    environment = fake_gpu.environment(library, FAKE_CAPABILITY="89")
    assert fake_gpu.run(words, environment, tmp_path).stderr.count(LINE) == 1
    if command == "generate":
        assert LINE not in fake_gpu.run(words, environment | {"FAKE_COUNT": "0"}, tmp_path).stderr
        assert LINE not in fake_gpu.run([*words, "--device", "cpu"], environment, tmp_path).stderr


def test_missing_packages_on_a_real_machine(library: Path, model: Path, tmp_path: Path) -> None:
    environment = fake_gpu.environment(library, tmp_path)
    words = ["generate", str(model), "-p", "Hi", "--max-tokens", "2"]
    assert f"{LINE}: the CUDA packages" in fake_gpu.run(words, environment, tmp_path).stderr


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, Presence("NVIDIA Fake 9000", (9, 0), (13, 0))),
        ({"FAKE_CAPABILITY": "120", "FAKE_VERSION": "12080"}, Presence("NVIDIA Fake 9000", (12, 0), (12, 8))),
        ({"FAKE_COUNT": "0"}, None),
        ({"FAKE_INIT": "100"}, None),  # hidden by CUDA_VISIBLE_DEVICES
        ({"FAKE_INIT": "803"}, None),  # and no device file: a library without a driver
    ],
)
def test_what_the_driver_says(said: dict[str, str], expected: Here, library: Path, tmp_path: Path) -> None:
    code = LOOK.format("none")
    assert fake_gpu.run(["-c", code], fake_gpu.environment(library, **said), tmp_path).stdout.strip() == str(expected)


def test_a_driver_that_does_not_start(library: Path, tmp_path: Path) -> None:
    code = LOOK.format("/")
    said = fake_gpu.run(["-c", code], fake_gpu.environment(library, FAKE_INIT="803"), tmp_path).stdout
    assert "error 803" in said
    without = fake_gpu.environment(tmp_path)  # a device file, but no library
    assert "libcuda.so.1" in fake_gpu.run(["-c", code], without, tmp_path).stdout


def test_the_server_says_it(library: Path, model: Path, tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", "from monolane.cli import main; main()", "serve", str(model), "--port", "0"],
        env=fake_gpu.environment(library, FAKE_VERSION="12080"),
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert server.stderr is not None
    lines = []
    try:
        for line in server.stderr:
            lines.append(line)
            if " is ready on " in line:
                break
    finally:
        os.kill(server.pid, signal.SIGINT)
        server.communicate(timeout=30)
    assert "".join(lines).count(LINE) == 1, lines
