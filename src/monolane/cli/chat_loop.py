"""A conversation on the terminal, or through a pipe."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console

from monolane.cli.word_wrap import WordWrap
from monolane.engine.chat_tokenizer import chat_template
from monolane.engine.llm import LLM
from monolane.engine.params import SamplingParams
from monolane.engine.result import Completion, Timings
from monolane.engine.stream import Stream
from monolane.errors import UsageError

HINT = "Ctrl-C stops an answer, Ctrl-D leaves, /help shows the rest."
HELP = """\
/system TEXT   what the model is told before the conversation; without a text, shows it
/reset         forgets the conversation
/save FILE     writes the conversation to a file, as Markdown
/exit          leaves, as Ctrl-D does
Ctrl-C         stops an answer"""


def summary(timings: Timings) -> str:
    """One line, such as: 37 tokens, 84.1 tok/s, first token after 52 ms."""
    parts = [f"{timings.generated_tokens} tokens"]
    if timings.tokens_per_second is not None:
        parts.append(f"{timings.tokens_per_second:.1f} tok/s")
    if timings.first_token_s is not None:
        parts.append(f"first token after {timings.first_token_s * 1e3:.0f} ms")
    return ", ".join(parts)


def write_answer(stream: Stream) -> Completion:
    """Print an answer to stdout as it is generated, ended by a newline. On a terminal, lines break between words."""
    wrap = WordWrap(shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    for delta in stream:
        print(wrap.add(delta.text) if wrap else delta.text, end="", flush=True)
    print(wrap.rest() if wrap else "", flush=True)
    return stream.result


def read_piped(read: Callable[[], str]) -> str:
    """Text from a pipe; UsageError where it is not valid UTF-8."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise UsageError(f"What came through the pipe is not valid UTF-8: {error}.", "Convert it first.") from error


def as_markdown(messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation for people: each message below its role."""
    return "\n".join(f"## {message['role']}\n\n{message['content'].strip()}\n" for message in messages)


@contextmanager
def interrupt_stops(stream: Stream) -> Iterator[None]:
    """Ctrl-C stops the answer; pressed again before it has stopped, it ends the program."""

    def stop(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stream.abort()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class ChatLoop:
    """Reads lines and answers them; line and answer become part of the conversation."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = system or ""
        self._messages: list[dict[str, str]] = []
        self._interactive = sys.stdin.isatty()
        self._console = Console(stderr=True)

    def run(self) -> None:
        chat_template(self._llm.model)  # a model without one is told of before the first line is typed
        if self._interactive:
            with suppress(ImportError):  # where it exists, users can edit their lines
                import readline  # noqa: F401
            self._note(HINT)
        while (line := self._read()) is not None:
            text = line.strip()
            command, _, rest = text.partition(" ")
            match command:
                case "":
                    pass
                case "/exit":
                    return
                case "/help":
                    self._note(HELP)
                case "/reset":
                    self._messages = []
                    self._note("Forgotten.")
                case "/system":
                    self._tell(rest.strip())
                case "/save":
                    self._save(rest.strip())
                case _ if re.fullmatch(r"/[a-z]+", command):
                    self._note(f"There is no {command}.\n{HELP}")
                case _:
                    self._turn(text)

    def _tell(self, system: str) -> None:
        """Change what the model is told before the conversation, which goes on."""
        self._system = system or self._system
        self._note(f"The model is told: {self._system}" if self._system else "The model is told nothing.")

    def _save(self, name: str) -> None:
        if not name:
            self._note("Say where: /save talk.md")
            return
        try:
            Path(name).expanduser().write_text(as_markdown(self._conversation()), encoding="utf-8")
        except (OSError, RuntimeError) as error:
            self._note(f"{name} cannot be written: {error}.")
        else:
            self._note(f"Saved to {name}.")

    def _conversation(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self._system}] if self._system else []), *self._messages]

    def _turn(self, text: str) -> None:
        asked = [*self._conversation(), {"role": "user", "content": text}]
        try:
            stream = self._llm.chat(asked, self._params, stream=True)
        except UsageError as error:  # the conversation no longer fits the context: /reset helps
            if not self._interactive:
                raise
            self._note(f"{error}\n/reset begins a new conversation.")
            return
        with interrupt_stops(stream):
            result = write_answer(stream)
        if result.text:
            self._messages += [{"role": "user", "content": text}, {"role": "assistant", "content": result.text}]
        self._note(summary(result.timings))

    def _read(self) -> str | None:
        """The next line; None at the end of the input."""
        if not self._interactive:
            return read_piped(sys.stdin.readline) or None
        while True:
            try:
                return input("> ")
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print()
                self._note(HINT)

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)
