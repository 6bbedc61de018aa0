"""A conversation on the terminal, or through a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console

from monolane.engine.chat_tokenizer import chat_template
from monolane.engine.llm import LLM
from monolane.engine.params import SamplingParams
from monolane.engine.result import Completion, Timings
from monolane.engine.stream import Stream
from monolane.errors import UsageError

HELP = "Ctrl-C stops an answer. /reset forgets the conversation. /exit or Ctrl-D leaves."


def summary(timings: Timings) -> str:
    """One line, such as: 37 tokens, 84.1 tok/s, first token after 52 ms."""
    parts = [f"{timings.generated_tokens} tokens"]
    if timings.tokens_per_second is not None:
        parts.append(f"{timings.tokens_per_second:.1f} tok/s")
    if timings.first_token_s is not None:
        parts.append(f"first token after {timings.first_token_s * 1e3:.0f} ms")
    return ", ".join(parts)


def write_answer(stream: Stream) -> Completion:
    """Print an answer to stdout as it is generated, ended by a newline."""
    for delta in stream:
        print(delta.text, end="", flush=True)
    print(flush=True)
    return stream.result


def read_piped(read: Callable[[], str]) -> str:
    """Text from a pipe; UsageError where it is not valid UTF-8."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise UsageError(f"What came through the pipe is not valid UTF-8: {error}.", "Convert it first.") from error


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
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._interactive = sys.stdin.isatty()
        self._console = Console(stderr=True)

    def run(self) -> None:
        chat_template(self._llm.model)  # a model without one is told of before the first line is typed
        if self._interactive:
            with suppress(ImportError):  # where it exists, users can edit their lines
                import readline  # noqa: F401
            self._note(HELP)
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    pass
                case "/exit":
                    return
                case "/reset":
                    self._messages = list(self._opening)
                    self._note("Forgotten.")
                case text:
                    self._turn(text)

    def _turn(self, text: str) -> None:
        asked = [*self._messages, {"role": "user", "content": text}]
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
            self._messages = [*asked, {"role": "assistant", "content": result.text}]
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
                self._note(HELP)

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)
