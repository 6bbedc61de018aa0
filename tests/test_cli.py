from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_llm import fake_llm
from fake_model import encode
from fake_target import FakeTarget
from monolane import ModelFileError, cli
from monolane.bench.measure.shapes import SHAPES
from monolane.cli import opening
from monolane.cli.progress_bar import PlainProgress, TerminalProgress
from monolane.cli.word_wrap import WordWrap
from monolane.engine.default_model import Choice
from monolane.model import fetch
from monolane.program.sample import Sampling


class Terminal:
    """Runs a command as a user would, and keeps what it wrote."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch = monkeypatch
        self._capsys = capsys
        self.opened: list[dict[str, object]] = []

    def answers(self, text: str, **model: bool | int) -> FakeTarget:
        """From now on, every model answers this."""
        llm, target = fake_llm(text, **model)

        def open_fake(model: str, **options: object) -> object:
            self.opened.append({"model": model} | options)
            return llm

        self._patch.setattr(opening, "open_llm", open_fake)
        return target

    def types(self, *lines: str | type[BaseException]) -> None:
        """A person at the keyboard; an exception stands for its key."""
        waiting = iter(lines)

        def read(_: str) -> str:
            line = next(waiting)
            if isinstance(line, str):
                return line
            raise line

        self._patch.setattr("builtins.input", read)
        self._patch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))

    def run(self, *words: str, piped: str | bytes = b"") -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        if not sys.stdin.isatty():
            raw = piped.encode() if isinstance(piped, str) else piped
            self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        self._patch.setattr(sys, "argv", ["monolane", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = self._capsys.readouterr()
        return end.value.code or 0, out, err  # type: ignore[return-value]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Terminal(monkeypatch, capsys)


COMMANDS = ["pull", "models", "rm", "generate", "chat", "inspect", "trace", "bench", "ceiling", "plan", "serve"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_command(terminal: Terminal, command: str) -> None:
    assert command in terminal.run("--help")[1]
    code, out, _ = terminal.run(command, "--help")
    assert code == 0
    assert command in out


def test_version(terminal: Terminal) -> None:
    assert terminal.run("--version")[1].startswith("monolane ")


def test_generate_writes_the_answer_and_nothing_else_to_stdout(terminal: Terminal) -> None:
    target = terminal.answers("blue.<eos>")
    code, out, err = terminal.run("generate", "some-model", "-p", "The sky is ", "--workers", "2", "--context", "99")
    assert (code, out) == (0, "blue.\n")
    assert "5 tokens" in err
    assert "tok/s" in err
    assert list(target.requests[0].tokens) == encode("The sky is ")
    machine = {"device": "auto", "workers": 2, "lanes": None, "placement": "together", "quantise": None, "context": 99}
    assert terminal.opened == [{"model": "some-model"} | machine]


def test_generate_as_json_is_one_object(terminal: Terminal) -> None:
    terminal.answers("blü.<eos>")
    code, out, err = terminal.run("generate", "--prompt", "x", "--json", "--logprobs", "1", "--seed", "4")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["text"], answer["finish_reason"], answer["seed"]) == ("blü.", "stop", 4)
    assert answer["token_ids"] == encode("blü.")
    assert answer["timings"]["generated_tokens"] == 5
    assert len(answer["logprobs"]) == 5


def test_generate_hands_every_option_on(terminal: Terminal) -> None:
    target = terminal.answers("abc<eos>")
    options = (
        "--max-tokens 9 --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 8 --ignore-eos --stop Z --stop Y"
    )
    penalties = (
        "--repetition-penalty 1.5 --presence-penalty 0.25 --frequency-penalty -1 --logit-bias 5=-2 --logit-bias 6=1"
    )
    assert terminal.run("generate", "-p", "x", *options.split(), *penalties.split())[0] == 0
    request = target.requests[0]
    sampling = request.sampling
    assert (request.max_tokens, request.stop_tokens) == (9, frozenset())
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.9, 0.1)
    assert (sampling.seed, sampling.repetition_penalty) == (8, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -1.0)
    assert sampling.logit_bias == ((5, -2.0), (6, 1.0))


def test_generate_reads_a_pipe(terminal: Terminal) -> None:
    target = terminal.answers("a<eos>")
    assert terminal.run("generate", piped="from a pipe\n")[1] == "a\n"
    assert list(target.requests[0].tokens) == encode("from a pipe")


@pytest.mark.parametrize(
    ("words", "piped", "says"),
    [
        (["generate", "-p", "x", "--temperature", "nan"], b"", "temperature is nan"),
        (["generate", "-p", "x", "--top-p", "0"], b"", "top_p"),
        (["generate", "-p", "x", "--logit-bias", "abc"], b"", "ID=NUMBER"),
        (["generate", "-p", "x", "--logprobs", "2"], b"", "--json"),
        (["generate", "-p", ""], b"", "The prompt is empty"),
        (["generate"], b"\xff\xfe", "UTF-8"),
        (["chat"], b"\xff\xfe\n", "UTF-8"),
        (["generate", "-p", "x" * 300], b"", "300 tokens"),
        (["generate", "-p", "x", "--max-tokens", "many"], b"", "--max-tokens"),
        (["generate", "-p", "x", "--no-such-option"], b"", "--no-such-option"),
        (["chat", "--temperature", "-1"], b"Hi\n", "temperature is -1"),
        (["serve", "--port", "70000"], b"", "--port"),
    ],
)
def test_mistakes_are_explained_on_stderr(terminal: Terminal, words: list[str], piped: bytes, says: str) -> None:
    terminal.answers("a<eos>")
    code, out, err = terminal.run(*words, piped=piped)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_no_prompt_at_a_keyboard_is_a_mistake(terminal: Terminal) -> None:
    terminal.types()
    code, _, err = terminal.run("generate")
    assert code == 2
    assert "--prompt" in err


def test_an_error_ends_the_program_with_its_own_code(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ModelFileError("The file is cut short.", "Fetch it again.")

    monkeypatch.setattr(opening, "open_llm", broken)
    code, out, err = terminal.run("generate", "-p", "x")
    assert (code, out) == (ModelFileError.exit_code, "")
    assert err == "error: The file is cut short.\nFetch it again.\n"


def test_ctrl_c_ends_generate_with_130(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "open_llm", interrupted)
    assert terminal.run("generate", "-p", "x")[0] == 130


def test_chat_through_a_pipe_remembers_and_forgets(terminal: Terminal) -> None:
    target = terminal.answers("Yes.<eos>")
    code, out, err = terminal.run("chat", "--system", "Be brief.", piped="Hi\n\nAnd?\n/reset\nHi\n/exit\nnever\n")
    assert (code, out) == (0, "Yes.\n" * 3)
    assert err.count("tok/s") == 3
    one = "[system]Be brief.[user]Hi[assistant]"
    asked = [list(request.tokens) for request in target.requests]
    assert asked == [encode(one), encode(f"{one}Yes.[user]And?[assistant]"), encode(one)]


def test_chat_samples_as_the_models_makers_suggest_unless_told_otherwise(terminal: Terminal) -> None:
    def sampling(*words: str) -> Sampling:
        target = terminal.answers("Yes.<eos>")
        assert terminal.run(*words, piped="Hi\n")[0] == 0
        return target.requests[0].sampling

    suggested, greedy, generated = sampling("chat"), sampling("chat", "--temperature", "0"), sampling("generate")
    assert (suggested.temperature, suggested.top_p, suggested.repetition_penalty) == (0.7, 0.9, 1.05)
    assert (greedy.temperature, greedy.top_p, greedy.repetition_penalty) == (0.0, 1.0, 1.0)
    assert (generated.temperature, generated.top_p, generated.repetition_penalty) == (0.0, 1.0, 1.0)


def test_commands_of_a_conversation(terminal: Terminal, tmp_path: Path) -> None:
    target = terminal.answers("Yes.<eos>")
    file = tmp_path / "talk.md"
    words = ["/save", "/what", "/help", "/usr/bin is a folder"]
    lines = ["/system", "/system Be brief.", "Hi", f"/save {file}", *words]
    code, out, err = terminal.run("chat", piped="\n".join(lines))
    assert (code, out) == (0, "Yes.\n" * 2)
    one = "[system]Be brief.[user]Hi[assistant]"
    assert [list(request.tokens) for request in target.requests] == [
        encode(one), encode(f"{one}Yes.[user]/usr/bin is a folder[assistant]"),
    ]  # fmt: skip
    assert file.read_text() == "## system\n\nBe brief.\n\n## user\n\nHi\n\n## assistant\n\nYes.\n"
    for said in ("told nothing", "told: Be brief.", "Saved to", "Say where", "There is no /what", "/reset "):
        assert said in err
    terminal.answers("Yes.<eos>")
    assert "Is a directory" in terminal.run("chat", piped=f"/save {tmp_path}\n")[2]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_break_between_words_and_code_stays_whole(size: int) -> None:
    text = "The quick brown fox.\n\n```python\n  x = 'longer than the line'\n```\nJumps overthe dog. Incomprehensibly"
    wrap = WordWrap(12)
    written = "".join(wrap.add(text[i : i + size]) for i in range(0, len(text), size)) + wrap.rest()
    assert written.split("\n") == [
        "The quick", "brown fox.", "", "```python", "  x = 'longer than the line'", "```", "Jumps", "overthe dog.",
        "Incomprehensibly",
    ]  # fmt: skip


def test_chat_ends_with_ctrl_d_and_not_with_ctrl_c(terminal: Terminal) -> None:
    terminal.answers("Yes.<eos>")
    terminal.types("Hi", KeyboardInterrupt, "Hi", EOFError)
    code, out, err = terminal.run("chat")
    assert code == 0
    assert out.count("Yes.\n") == 2
    assert "/help" in err


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    target = terminal.answers("a", context=100_000)
    target.slow_down(0.01)

    def press() -> None:
        target.first_token.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    terminal.types("Hi", "/exit")
    before = signal.getsignal(signal.SIGINT)
    presser = threading.Thread(target=press)
    presser.start()
    code, out, err = terminal.run("chat")
    presser.join()
    assert code == 0
    assert 1 <= out.count("a") < 1000
    assert "tokens" in err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_model_that_cannot_chat_says_so_before_the_first_line(terminal: Terminal) -> None:
    terminal.answers("Yes.<eos>", with_template=False)
    terminal.types()
    code, out, err = terminal.run("chat")
    assert (code, out) == (2, "")
    assert "no chat template" in err
    assert "monolane generate" in err


def test_a_conversation_that_is_too_long_can_be_begun_anew(terminal: Terminal) -> None:
    terminal.answers("Yes.<eos>", context=64)
    terminal.types("x" * 100, "Hi", EOFError)
    code, out, err = terminal.run("chat")
    assert code == 0
    assert out.count("Yes.\n") == 1
    assert "/reset" in err


def test_inspect_shows_the_program_and_draws_it(terminal: Terminal, tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    picture = tmp_path / "plan.svg"
    code, out, _ = terminal.run("inspect", str(tmp_path), "--workers", "3", "--picture", str(picture))
    assert code == 0
    assert "gate_up" in out
    assert "3 worker" in out
    assert "ffn 0.1 MB (16 bits per weight)" in out
    assert picture.read_text().lstrip().startswith("<?xml")
    assert terminal.run("inspect", str(tmp_path), "--workers", "0")[0] == 2
    code, _, err = terminal.run("inspect", str(tmp_path), "--device", "cuda", "--workers", "3")
    assert code == 2
    assert "multiprocessor" in err
    code, _, err = terminal.run("inspect", str(tmp_path), "--device", "tpu")
    assert code == 2
    assert "cuda, cpu" in err


def test_inspect_shows_a_shape_that_has_no_files(terminal: Terminal, tmp_path: Path) -> None:
    made = ("--workers", "2", "--picture", str(tmp_path / "plan.png"))
    code, out, _ = terminal.run("inspect", "--shape", "gpt-oss-20b:2", "--weights", "mxfp4+q8", *made)
    assert code == 0
    assert re.search(r"gate_up +4 of 32 x 5760 x 2880 fp4e32", out)
    assert "i8g32" in out
    code, _, err = terminal.run("inspect", str(tmp_path), "--shape", "gpt-oss-20b")
    assert code == 2
    assert "Choose one of the two" in err


def test_trace_shows_where_the_time_goes_and_draws_it(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(SHAPES["smollm2-135m"], hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, ffn=64, vocab=50,
                   windows=(None,))  # fmt: skip
    monkeypatch.setitem(SHAPES, "tiny", tiny)
    monkeypatch.chdir(tmp_path)
    code, out, err = terminal.run("trace", "--shape", "tiny", "--tokens", "2", "--device", "cpu", "--workers", "2")
    assert code == 0
    assert "tiny, cpu (2 x" in out
    assert "gate_up" in out
    assert "trace: trace.json" in err
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (tmp_path / "trace.svg").read_text().startswith("<?xml")
    assert not [path for path in tmp_path.iterdir() if path.name not in ("trace.json", "trace.svg")]
    for wrong in (("--shape", "huge"), ("some-model", "--shape", "tiny"), ("--shape", "tiny", "--out", "x.txt")):
        code, _, err = terminal.run("trace", *wrong)
        assert code == 2
        assert err.count("\n") == 2


def test_models_are_listed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    here = fetch.ModelEntry("some/model", "from the hub", 1_500_000, Path("x"))
    default = fetch.ModelEntry("tiny", "small", 98_000_000, None, partial_bytes=49_000_000)
    remote = fetch.ModelEntry("big", "large (some/big)", 98_000_000_000, None, hub_only=True)
    monkeypatch.setattr(fetch, "describe_models", lambda: [default, remote, here])
    monkeypatch.setattr("monolane.engine.default_model.default_model", lambda *_: Choice("tiny", "a line"))
    code, out, err = terminal.run("models")
    first, second, third = out.splitlines()
    assert code == 0
    assert first.startswith("tiny ")
    assert "default" in first
    assert "fetched" not in first
    assert "hub only" not in first
    assert "hub only" in second
    assert "fetched" in third
    assert "1.5 MB" in third
    assert "50% here" in first
    assert "1.5 MB" in err


def test_a_model_is_removed_after_a_question(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    hub = tmp_path / "models" / "hub"
    for name in ("some--model", "some--model-2", ".some--model.fetch"):
        (hub / name).mkdir(parents=True)
        (hub / name / "weights").write_bytes(bytes(1000))
    code, _, err = terminal.run("rm", "some/model", piped="n\n")
    assert code == 1
    assert "2.0 kB" in err
    assert (hub / "some--model").exists()
    code, _, err = terminal.run("rm", "some/model", "--yes")
    assert (code, [path.name for path in hub.iterdir()]) == (0, ["some--model-2"])
    for name, says in (
        ("some/model", "not fetched"),
        ("laneformer-tiny", "comes with"),
        ("../hub", "no model"),
        ("smollm2-135m", "not fetched"),
    ):
        code, _, err = terminal.run("rm", name, "--yes")
        assert code == 2
        assert says in err


def test_pull_prints_the_place(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(spec: str, progress: Any) -> Path:
        progress.start(100, f"Fetching {spec}")
        progress.advance(100)
        progress.done()
        return Path("some") / spec

    monkeypatch.setattr(fetch, "resolve", resolve)
    code, out, err = terminal.run("pull", "tiny")
    assert (code, out) == (0, str(Path("some/tiny")) + "\n")
    assert "Fetching tiny" in err


def test_plain_progress_speaks_at_every_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    progress = PlainProgress()
    progress.start(1000, "Fetching x")
    for _ in range(100):
        progress.advance(10)
    progress.done()
    progress.note("a note")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Fetching x (1.0 kB)"
    assert lines[1:] == ["Fetching x: 25%", "Fetching x: 50%", "Fetching x: 75%", "Fetching x: 100%", "a note"]


def test_the_bar_of_a_terminal() -> None:
    from rich.console import Console

    out = io.StringIO()
    progress = TerminalProgress(Console(file=out, force_terminal=True, width=100))
    progress.advance(5)  # before a start, and after the end: nothing to move
    progress.start(100, "Fetching x")
    progress.advance(100)
    progress.note("[a] note")
    progress.done()
    progress.done()
    assert "Fetching x" in out.getvalue()
    assert "[a] note" in out.getvalue()
