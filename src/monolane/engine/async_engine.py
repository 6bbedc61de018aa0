"""The engine behind a server: an engine process, a scheduler for its requests, and the tokenizer of its model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from monolane.engine import messages, scoring, starvation
from monolane.engine.answer import Answer
from monolane.engine.chat_tokenizer import ChatTokenizer, Message, check_length
from monolane.engine.core import core_command
from monolane.engine.daemon_thread import in_daemon_thread
from monolane.engine.engine_process import EngineProcess
from monolane.engine.load_progress import LoadProgress
from monolane.engine.params import SamplingParams
from monolane.engine.prompt import make_transcript
from monolane.engine.queue import WaitingQueue
from monolane.engine.scheduler import Scheduler
from monolane.engine.state import About, Counters, EngineState, Status, TargetInfo
from monolane.engine.supervisor import Supervisor
from monolane.errors import EngineFailedError, NotReadyError, UsageError
from monolane.model.chat import Rendering

if TYPE_CHECKING:
    from monolane.model.load import Model
    from monolane.progress import Progress

LOGGER = logging.getLogger("monolane.engine")
QUEUE_LIMIT = 64
# Without a heartbeat of the process; with the time to notice, clients get an error within 1 s. Where a process that
# hangs cannot be told from one that lacks processor time, it gets longer.
STALL_S = 0.8 if starvation.CAN_TELL else 10.0
END_S = 1.0  # for the running request to end after it was cancelled
TOKENIZER_THREADS = 2  # beside the event loop; each may keep memory for the longest prompt it has seen

T = TypeVar("T")


class AsyncEngine:
    """One request decodes at a time, the others wait in a queue. All methods belong to the event loop that started it.
    It can be unloaded, and started again: its counters go on.

    load     reads the model without its weights; it is called in a thread
    command  gives the command line of the engine process for that model
    queue    where its requests wait; engines on one machine share it. None: one of its own
    """

    def __init__(
        self,
        load: Callable[[Progress], Model],
        command: Callable[[Model], Sequence[str]],
        *,
        queue: WaitingQueue | None = None,
        max_answer_tokens: int | None = None,
        max_answer_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``max_answer_tokens`` and ``max_answer_s``: the most tokens, and seconds from its start, of any answer."""
        self._max_answer_tokens, self._max_answer_s = max_answer_tokens, max_answer_s
        self._load = load
        self._command = command
        self._progress = LoadProgress(progress)
        self._scheduler = Scheduler(queue or WaitingQueue(QUEUE_LIMIT))
        self._supervisor: Supervisor | None = None
        self._starting: asyncio.Task[None] | None = None
        self._status: Status = "unloaded"
        self._problem: str | None = None
        self._model: Model | None = None
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, "monolane-tokenizer")
        self.tokenizer: ChatTokenizer | None = None
        self.target: TargetInfo | None = None  # this and the next are still told after it was unloaded
        self.about: About | None = None

    @classmethod
    def for_model(
        cls,
        spec: str | Path,
        *,
        device: str = "auto",
        workers: int | None = None,
        lanes: int | None = None,
        placement: str = "together",
        quantise: str | None = None,
        context: int | None = None,
        sharing: int = 1,
        queue: WaitingQueue | None = None,
        max_answer_tokens: int | None = None,
        max_answer_s: float | None = None,
        progress: Progress | None = None,
    ) -> AsyncEngine:
        """An engine for a model by name, hub id, folder or GGUF file; the options are those of LLM, and
        ``sharing``: so many models share the machine's memory."""

        def load(progress: Progress) -> Model:
            from monolane.model.fetch import resolve
            from monolane.model.load import load_model

            return load_model(resolve(str(spec), progress), progress)

        def command(model: Model) -> list[str]:
            return core_command(
                model.path,
                device=device,
                workers=workers,
                lanes=lanes,
                placement=placement,
                quantise=quantise,
                context=context,
                sharing=sharing,
            )

        return cls(
            load,
            command,
            queue=queue,
            max_answer_tokens=max_answer_tokens,
            max_answer_s=max_answer_s,
            progress=progress,
        )

    # --- start and end ---

    async def start(self) -> None:
        """Return when the engine is ready; raise what went wrong."""
        if self._status not in ("unloaded", "failed"):
            raise self.not_ready()
        self._status, self._problem = "loading", None
        self._starting = asyncio.create_task(self._start())
        try:
            await self._starting
        except asyncio.CancelledError:
            if self._status not in ("stopping", "closed"):
                raise
            raise self.not_ready() from None
        except Exception as error:
            self._status, self._problem = "failed", str(error).split("\n")[0]
            raise

    async def close(self, drain_s: float = 3.0) -> None:
        """Refuse new requests, give those accepted ``drain_s`` seconds to end, then end them and the engine process."""
        if self._status in ("stopping", "closed"):
            return
        self._status = "stopping"
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._scheduler.drained(drain_s)
        self._scheduler.refuse_waiting(self.not_ready())
        if (running := self._scheduler.running) is not None:
            running.cancel()
            await self._scheduler.drained(END_S)
        await self._end_process()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._status = "closed"

    async def unload(self) -> None:
        """End the engine process and forget the model, until the next ``start``. No request may run or wait."""
        self._status = "stopping"
        await self._end_process()
        self._model = self.tokenizer = None
        self._status = "unloaded"

    @property
    def state(self) -> EngineState:
        process = self._process
        return EngineState(
            status=self._status,
            label=self._progress.label,
            done_bytes=self._progress.done_bytes,
            total_bytes=self._progress.total_bytes,
            restarts=self.counters.restarts,
            problem=self._problem,
            core_pid=None if process is None else process.pid,
        )

    # --- requests ---

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] = (),
        grammar: str | None = None,
    ) -> Answer:
        """Answer the last of ``messages``: mappings with ``role`` and ``content``, oldest first."""
        return self.submit(await self.chat_tokens(messages, tools), params or SamplingParams(), grammar=grammar)

    async def complete(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, *, grammar: str | None = None
    ) -> Answer:
        """Continue a prompt, text or token ids."""
        tokens = await self.text_tokens(prompt) if isinstance(prompt, str) else prompt
        return self.submit(tokens, params or SamplingParams(), grammar=grammar)

    # Tokenizing a long text takes a while, so these work in a thread: the event loop goes on sending other answers.

    async def chat_tokens(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), how: Rendering | None = None
    ) -> list[int]:
        tokenizer, target = self.loaded()
        check_length([messages, tools], target.context)
        return await self.in_thread(lambda: tokenizer.chat_tokens(messages, tools, how))

    async def text_tokens(self, text: str, special: bool = True) -> list[int]:
        tokenizer, target = self.loaded()
        check_length(text, target.context)
        return await self.in_thread(lambda: tokenizer.text_tokens(text, special))

    async def text(self, tokens: Sequence[int]) -> str:
        tokenizer, _ = self.loaded()
        return await self.in_thread(lambda: tokenizer.text(tokens))

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def loaded(self) -> tuple[ChatTokenizer, TargetInfo]:
        """The model's tokenizer and the target it runs on; NotReadyError until both are known, and after the end."""
        if self.tokenizer is None or self.target is None or self._status in ("stopping", "closed"):
            raise self.not_ready()
        return self.tokenizer, self.target

    def submit(
        self,
        tokens: Sequence[int],
        params: SamplingParams,
        *,
        grammar: str | None = None,
        prompt_logprobs: int | None = None,
    ) -> Answer:
        """Run or queue a request. A wrong request, a full queue and an engine that is not ready raise here."""
        model, target = self._model, self.target
        if self._status != "ready" or model is None or target is None:
            raise self.not_ready()
        if prompt_logprobs is not None and (most := scoring.MAX_BYTES // (4 * model.config.vocab)) < len(tokens):
            raise UsageError(f"The prompt has {len(tokens)} tokens.", f"Logprobs of a prompt are told for {most}.")
        if (most_made := self._max_answer_tokens) is not None:
            asked = params.max_tokens
            params = replace(params, max_tokens=most_made if asked is None else min(asked, most_made))
        transcript = make_transcript(model, target.context, tokens, params)
        answer = Answer(
            transcript,
            grammar,
            target.bytes_per_token,
            self._scheduler.cancel,
            prompt_logprobs=prompt_logprobs,
            longest_s=self._max_answer_s,
        )
        self._scheduler.add(answer)
        return answer

    @property
    def running(self) -> bool:
        return self._scheduler.running is not None

    @property
    def queue_depth(self) -> int:
        """The number of requests that wait, without the one that runs."""
        return self._scheduler.waiting

    @property
    def counters(self) -> Counters:
        return self._scheduler.counters

    # --- called by the supervisor ---

    def on_message(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Tokens(written):
                self._scheduler.tokens_written(written)
            case messages.Started(number, cached_tokens):
                self._scheduler.started(number, cached_tokens)
            case messages.PromptLogprobs(number, entries):
                self._scheduler.scored(number, entries)
            case messages.Ended(number, finish, start_ns):
                self._scheduler.ended(number, finish, start_ns)
            case messages.Refused(number, text, hint):
                self._scheduler.refused(number, UsageError(text, hint))
            case messages.Failed(_, text, hint):
                self._restarting(text)
                self._scheduler.disconnect(EngineFailedError(text, hint))
            case messages.Loading():
                self._progress.update(message)
            case messages.Note(text):
                self._progress.note(text)
            case messages.Ready(target):
                self._progress.done()
                self.target = target
                if self._status in ("loading", "restarting"):
                    self._status, self._problem = "ready", None
                if (process := self._process) is not None:
                    self._scheduler.connect(process)

    def on_end(self, problem: str) -> None:
        self.counters.restarts += 1
        LOGGER.warning("The engine has died and is started again: %s.", problem)
        self._restarting(problem)
        text = f"The engine failed while it answered: {problem}."
        self._scheduler.disconnect(EngineFailedError(text, "It is restarting: ask again in a moment."))

    def on_failed_restart(self, problem: str) -> None:
        self._progress.done()
        LOGGER.warning("The engine could not be started again, and is tried once more: %s.", problem)
        self._restarting(problem)
        self._scheduler.refuse_waiting(self.not_ready())

    # --- inside ---

    async def _start(self) -> None:
        model = self._model = await in_daemon_thread(lambda: self._load(self._progress))
        self.tokenizer = ChatTokenizer(model)
        self.about = about(model, self.tokenizer)
        self._progress.done()
        self._supervisor = Supervisor(self._command(model), self, STALL_S)
        try:
            await self._supervisor.start()
        except BaseException:
            await self._supervisor.close()
            raise

    async def _end_process(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()
            self._supervisor = None
        self._scheduler.disconnect(self.not_ready())

    @property
    def _process(self) -> EngineProcess | None:
        return None if self._supervisor is None else self._supervisor.process

    def _restarting(self, problem: str) -> None:
        self._problem = problem
        if self._status == "ready":
            self._status = "restarting"

    def not_ready(self) -> NotReadyError:
        """What who asks now is told."""
        if self._status in ("stopping", "closed"):
            return NotReadyError("The engine is being closed.", "Ask again when the server is back.")
        if self._status == "restarting":
            return NotReadyError(f"The engine is restarting: {self._problem}.", "Ask again in a moment.")
        if self._status == "failed":
            return NotReadyError(f"The model could not be loaded: {self._problem}", "See to that, and start again.")
        if self._status == "unloaded":
            return NotReadyError("The model is not loaded.", "Ask again in a moment.")
        return NotReadyError(f"The model is still loading{self._progress.shown_share}.", "Ask again in a moment.")


def about(model: Model, tokenizer: ChatTokenizer) -> About:
    is_file = model.path.is_file()
    files = [model.path] if is_file else [file for file in model.path.glob("*") if file.is_file()]
    return About(
        family=model.config.family,
        dtype=model.dtype,
        file_format="gguf" if is_file else "safetensors",
        disk_bytes=sum(file.stat().st_size for file in files),
        template=model.chat.source if model.chat else "",
        can_infill=tokenizer.can_infill,
    )
