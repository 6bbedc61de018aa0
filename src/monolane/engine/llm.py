"""The Python API: a model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from monolane.engine.chat_tokenizer import ChatTokenizer, Message
from monolane.engine.params import SamplingParams
from monolane.engine.prompt import make_transcript
from monolane.engine.result import Completion
from monolane.engine.session import Session
from monolane.engine.stream import Stream
from monolane.target.base import Target

if TYPE_CHECKING:
    from monolane.model.config import ModelConfig
    from monolane.model.load import Model
    from monolane.model.tokenizer import Tokenizer
    from monolane.progress import Progress


class LLM:
    """A loaded model. It runs one request at a time; calls from several threads wait for each other.

    model    a name (``monolane models`` lists them), a hub id, a folder, a GGUF file, or a loaded Model; None: the
             best coder that this machine runs fast (engine/default_model.py)
    device   "auto", "cuda", "cpu" or "interpreter" (NumPy: slow, for checking)
    workers  threads of the CPU target; None: one per core
    lanes    tensor-parallel shares of the model; None: one, or a Laneformer's own
    placement "together": all lanes in this process; "apart": every lane but the first in a process of its own
    quantise "q8" or "q4": 16-bit matrices are quantised to 8 or 4 bits while they are loaded; None: as they are stored
    context  tokens of prompt and answer together that a KV cache holds; None: chosen for the model
    progress receives the progress of loading; None: only its notes (such as a GPU that is not used) go to the log
    """

    def __init__(
        self,
        model: str | Path | Model | None = None,
        *,
        device: str = "auto",
        workers: int | None = None,
        lanes: int | None = None,
        placement: str = "together",
        quantise: str | None = None,
        context: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        from monolane.engine.default_model import noted_default
        from monolane.progress import LoggedNotes
        from monolane.target import open_target

        progress = progress or LoggedNotes()
        if model is None:
            model = noted_default(device, workers, progress)
        self.model = _load(model, progress) if isinstance(model, str | Path) else model
        self._chat_tokenizer = ChatTokenizer(self.model)
        config, weights = self.model.config, self.model.weights
        target = open_target(
            config,
            weights,
            device=device,
            workers=workers,
            lanes=lanes,
            placement=placement,
            quantise=quantise,
            context=context,
            progress=progress,
        )
        self._session = Session(target)
        try:
            self.model.tokenization()  # what is wrong with it is raised now, not with the first answer
        except BaseException:
            self.close()
            raise

    @property
    def target(self) -> Target:
        return self._session.target

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def suggested(self) -> SamplingParams:
        """The sampling that the model's makers suggest: what requests without parameters get."""
        return SamplingParams.suggested(self.model)

    def generate(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Completion:
        """Continue a prompt, text or token ids, and return the whole answer. Without ``params`` it is sampled as
        ``suggested``."""
        return _finished(self.stream(prompt, params))

    def stream(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Stream:
        """Continue a prompt, piece by piece. A wrong request raises here, before anything runs."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._stream(tokens, params or self.suggested)

    @overload
    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, stream: Literal[False] = False
    ) -> Completion: ...

    @overload
    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, stream: Literal[True]
    ) -> Stream: ...

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, stream: bool = False
    ) -> Completion | Stream:
        """Answer the last of ``messages``: mappings with ``role`` and ``content``, oldest first. Control tokens in them
        reach the model as text."""
        answer = self._stream(self._chat_tokenizer.chat_tokens(messages), params or self.suggested)
        return answer if stream else _finished(answer)

    def close(self) -> None:
        """Stop the running request, if any, and free the memory."""
        self._session.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, tokens: Sequence[int], params: SamplingParams) -> Stream:
        return Stream(self._session, make_transcript(self.model, self.target.context, tokens, params))


def _load(spec: str | Path, progress: Progress | None) -> Model:
    from monolane.model.fetch import resolve
    from monolane.model.load import start_loading

    return start_loading(resolve(str(spec), progress), progress)


def _finished(stream: Stream) -> Completion:
    for _ in stream:
        pass
    return stream.result
