"""The four tasks with one client, in the client's own environment: ``python client.py CLIENT URL MODEL``.

The model is small, so nothing is asked of its answers but what the client and the server are responsible for: that
turns, pieces, calls, results and forms arrive. It prints a line of JSON for each task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

TASKS = ("conversation", "stream", "tools", "schema")
NOT_OFFERED = "not offered"
NAME = "My name is Ada. Say hello."
ASKED = "What is my name? Answer with the name."
COUNT = "Say hello to the world in one sentence."
ADA = "Ada is 36 years old. Who is it, and how old?"
WEATHER = "What is the weather in Paris? Use the tool, then answer in one sentence."
SUN = "It is 21 degrees and sunny in Paris."
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather in a city.", "parameters": PARAMETERS}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
MOST = 48  # tokens of an answer
PLAIN: dict[str, Any] = {"temperature": 0.0, "max_tokens": MOST}
Ask = Callable[..., Any]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def is_person(value: Any) -> None:
    value = json.loads(value) if isinstance(value, str) else value
    value = value if isinstance(value, dict) else value.model_dump()
    assert set(value) == {"name", "age"}, value
    assert isinstance(value["age"], int), value


def is_name(text: str | None) -> None:
    assert "Ada" in (text or ""), text


def is_stream(pieces: list[str]) -> None:
    assert len([piece for piece in pieces if piece]) > 1, pieces


class Chat:
    """The four tasks through one function in the format of OpenAI's chat API, which several clients share."""

    def __init__(self, create: Ask) -> None:
        self._create = create

    def conversation(self) -> None:
        first = self._create(messages=[user(NAME)], **PLAIN).choices[0].message
        history = [user(NAME), {"role": "assistant", "content": first.content}, user(ASKED)]
        is_name(self._create(messages=history, **PLAIN).choices[0].message.content)

    def stream(self) -> None:
        chunks = self._create(messages=[user(COUNT)], stream=True, **PLAIN)
        is_stream([chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices])

    def tools(self) -> None:
        tools = [{"type": "function", "function": FUNCTION}]
        message = self._create(messages=[user(WEATHER)], tools=tools, **PLAIN).choices[0].message
        assert message.tool_calls, message.content
        call = message.tool_calls[0]
        assert json.loads(call.function.arguments)["city"]
        history = [user(WEATHER), message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": SUN}]
        assert self._create(messages=history, tools=tools, **PLAIN).choices[0].message

    def schema(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        is_person(self._create(messages=[user(ADA)], response_format=form, **PLAIN).choices[0].message.content)


def openai(url: str, model: str) -> Chat:
    from functools import partial

    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    return Chat(partial(client.chat.completions.create, model=model))


def litellm(url: str, model: str) -> Chat:
    from functools import partial

    from litellm import completion

    return Chat(partial(completion, model=f"openai/{model}", api_base=f"{url}/v1", api_key="none"))


def litellm_proxy(url: str, model: str) -> Chat:
    """The proxy in a process of its own, and OpenAI's client before it."""
    folder = Path(tempfile.mkdtemp())
    served = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": model, "litellm_params": served}]}
    (folder / "config.yaml").write_text(json.dumps(config))
    port = 18000 + os.getpid() % 1000
    program = str(Path(sys.executable).with_name("litellm"))
    command = [program, "--config", str(folder / "config.yaml"), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(folder / "log").open("w"))
    import atexit

    atexit.register(process.kill)
    for _ in range(400):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=1).close()
            return openai(f"http://127.0.0.1:{port}", model)
        except OSError:
            time.sleep(0.5)
    raise RuntimeError((folder / "log").read_text()[-300:] or "the proxy did not start")


class Anthropic:
    def __init__(self, url: str, model: str) -> None:
        from anthropic import Anthropic

        self._messages = Anthropic(base_url=url, api_key="none").messages
        self._plain: dict[str, Any] = {"model": model, "max_tokens": MOST, "extra_body": {"temperature": 0.0}}

    def conversation(self) -> None:
        said = self._messages.create(messages=[user(NAME)], **self._plain).content
        history: Any = [user(NAME), {"role": "assistant", "content": said}, user(ASKED)]
        is_name(self._messages.create(messages=history, **self._plain).content[0].text)

    def stream(self) -> None:
        with self._messages.stream(messages=[user(COUNT)], **self._plain) as stream:
            is_stream(list(stream.text_stream))

    def tools(self) -> None:
        tools: Any = [{"name": "weather", "description": FUNCTION["description"], "input_schema": PARAMETERS}]
        said = self._messages.create(messages=[user(WEATHER)], tools=tools, **self._plain).content
        calls = [block for block in said if block.type == "tool_use"]
        assert calls, said
        assert calls[0].input["city"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": SUN} for call in calls]
        history: Any = [user(WEATHER), {"role": "assistant", "content": said}, {"role": "user", "content": results}]
        assert self._messages.create(messages=history, tools=tools, **self._plain).stop_reason

    def schema(self) -> None:
        form: Any = {"format": {"type": "json_schema", "schema": PERSON}}
        is_person(self._messages.create(messages=[user(ADA)], output_config=form, **self._plain).content[0].text)


class Langchain:
    """LangChain's two packages have the same interface."""

    def __init__(self, chat: Any, method: str) -> None:
        self._chat, self._method = chat, method

    def conversation(self) -> None:
        first = self._chat.invoke(NAME)
        is_name(self._chat.invoke([("user", NAME), first, ("user", ASKED)]).text)

    def stream(self) -> None:
        is_stream([chunk.text for chunk in self._chat.stream(COUNT)])

    def tools(self) -> None:
        from langchain_core.messages import HumanMessage
        from langchain_core.tools import tool

        @tool
        def weather(city: str) -> str:
            """The weather in a city."""
            return SUN

        bound = self._chat.bind_tools([weather])
        said = bound.invoke([HumanMessage(WEATHER)])
        assert said.tool_calls, said.content
        results = [weather.invoke(call) for call in said.tool_calls if call["name"] == "weather"]
        assert results
        bound.invoke([HumanMessage(WEATHER), said, *results])

    def schema(self) -> None:
        named = PERSON | {"title": "person", "description": "A person."}
        is_person(self._chat.with_structured_output(named, method=self._method).invoke(ADA))


def langchain_openai(url: str, model: str) -> Langchain:
    from langchain_openai import ChatOpenAI

    return Langchain(ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, **PLAIN), "json_schema")


def langchain_anthropic(url: str, model: str) -> Langchain:
    from langchain_anthropic import ChatAnthropic

    return Langchain(
        ChatAnthropic(base_url=url, api_key="none", model=model, max_tokens=MOST, temperature=0.0), "json_schema"
    )


class Llm:
    def __init__(self, url: str, model: str) -> None:
        folder = Path(tempfile.mkdtemp())
        os.environ["LLM_USER_PATH"] = str(folder)
        served = {"model_id": "m", "model_name": model, "api_base": f"{url}/v1", "supports_tools": True}
        (folder / "extra-openai-models.yaml").write_text(json.dumps([served | {"supports_schema": True}]))
        import llm

        self._model = llm.get_model("m")

    def conversation(self) -> None:
        conversation = self._model.conversation()
        conversation.prompt(NAME, **PLAIN).text()
        is_name(conversation.prompt(ASKED, **PLAIN).text())

    def stream(self) -> None:
        is_stream(list(self._model.prompt(COUNT, stream=True, **PLAIN)))

    def tools(self) -> None:
        asked = []

        def weather(city: str) -> str:
            """The weather in a city."""
            asked.append(city)
            return SUN

        chain = self._model.conversation().chain(WEATHER, tools=[weather], chain_limit=2, options=PLAIN)
        try:
            chain.text()
        except ValueError as error:
            if "limit" not in str(error):  # reached where the model calls again and again
                raise
        assert asked

    def schema(self) -> None:
        is_person(self._model.prompt(ADA, schema=PERSON, **PLAIN).text())


class Instructor:
    def __init__(self, url: str, model: str) -> None:
        from openai import OpenAI

        self._plain, self._model = OpenAI(base_url=f"{url}/v1", api_key="none"), model

    def _client(self, mode: str) -> Any:
        import instructor

        return instructor.from_openai(self._plain, mode=instructor.Mode[mode])

    def _person(self) -> Any:
        from pydantic import BaseModel, create_model

        return create_model("Person", __base__=BaseModel, name=(str, ...), age=(int, ...))

    def conversation(self) -> None:
        create = self._client("TOOLS").chat.completions.create
        first = create(model=self._model, response_model=None, messages=[user(NAME)], **PLAIN).choices[0].message
        history = [user(NAME), {"role": "assistant", "content": first.content}, user(ASKED)]
        answer = create(model=self._model, response_model=None, messages=history, **PLAIN)
        is_name(answer.choices[0].message.content)

    def stream(self) -> None:
        partial = self._client("JSON_SCHEMA").chat.completions.create_partial
        assert list(partial(model=self._model, response_model=self._person(), messages=[user(ADA)], **PLAIN))

    def tools(self) -> None:
        create = self._client("TOOLS").chat.completions.create
        is_person(create(model=self._model, response_model=self._person(), messages=[user(ADA)], **PLAIN))

    def schema(self) -> None:
        create = self._client("JSON_SCHEMA").chat.completions.create
        is_person(create(model=self._model, response_model=self._person(), messages=[user(ADA)], **PLAIN))


class PydanticAi:
    def __init__(self, url: str, model: str) -> None:
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        self._agent: Any = Agent
        self._model = OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
        self._settings: Any = PLAIN

    def conversation(self) -> None:
        agent = self._agent(self._model, model_settings=self._settings)
        first = agent.run_sync(NAME)
        is_name(agent.run_sync(ASKED, message_history=first.all_messages()).output)

    def stream(self) -> None:
        import asyncio

        async def pieces() -> list[str]:
            async with self._agent(self._model, model_settings=self._settings).run_stream(COUNT) as result:
                return [text async for text in result.stream_text(delta=True, debounce_by=None)]

        is_stream(asyncio.run(pieces()))

    def tools(self) -> None:
        from pydantic_ai import UsageLimitExceeded, UsageLimits

        asked = []
        agent = self._agent(self._model, model_settings=self._settings)

        @agent.tool_plain
        def weather(city: str) -> str:
            """The weather in a city."""
            asked.append(city)
            return SUN

        with suppress(UsageLimitExceeded):  # the model calls again and again
            agent.run_sync(WEATHER, usage_limits=UsageLimits(request_limit=2))
        assert asked

    def schema(self) -> None:
        from pydantic import BaseModel, create_model
        from pydantic_ai import NativeOutput

        person = create_model("Person", __base__=BaseModel, name=(str, ...), age=(int, ...))
        is_person(self._agent(self._model, output_type=NativeOutput(person), model_settings=PLAIN).run_sync(ADA).output)


class OpenaiAgents:
    def __init__(self, url: str, model: str) -> None:
        from agents import ModelSettings, OpenAIChatCompletionsModel, set_tracing_disabled
        from openai import AsyncOpenAI

        set_tracing_disabled(True)
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        self._served = {
            "model": OpenAIChatCompletionsModel(model=model, openai_client=client),
            "model_settings": ModelSettings(temperature=0.0, max_tokens=MOST),
            "name": "helper",
        }

    def conversation(self) -> None:
        from agents import Agent, Runner

        agent: Any = Agent(**self._served)
        first = Runner.run_sync(agent, NAME)
        is_name(Runner.run_sync(agent, [*first.to_input_list(), user(ASKED)]).final_output)

    def stream(self) -> None:
        import asyncio

        from agents import Agent, Runner

        async def pieces() -> list[str]:
            result = Runner.run_streamed(Agent(**self._served), COUNT)
            events = [getattr(event, "data", None) async for event in result.stream_events()]
            return [event.delta for event in events if hasattr(event, "delta")]

        is_stream(asyncio.run(pieces()))

    def tools(self) -> None:
        from agents import Agent, MaxTurnsExceeded, Runner, function_tool

        asked = []

        @function_tool
        def weather(city: str) -> str:
            """The weather in a city."""
            asked.append(city)
            return SUN

        with suppress(MaxTurnsExceeded):  # the model calls again and again
            Runner.run_sync(Agent(**self._served, tools=[weather]), WEATHER, max_turns=2)
        assert asked

    def schema(self) -> None:
        from agents import Agent, Runner
        from pydantic import BaseModel, create_model

        person = create_model("Person", __base__=BaseModel, name=(str, ...), age=(int, ...))
        is_person(Runner.run_sync(Agent(**self._served, output_type=person), ADA).final_output)


class Program:
    """Clients that are programs, and have a purpose of their own instead of calls and forms."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model, self.folder = url, model, Path(tempfile.mkdtemp())

    def run(self, *command: str, **environment: str) -> str:
        program, *rest = command
        path = str(Path(sys.executable).with_name(program))
        done = subprocess.run(
            [path, *rest], cwd=self.folder, env=os.environ | environment, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-300:]
        return done.stdout

    def tools(self) -> str:
        return NOT_OFFERED

    schema = tools


class Aider(Program):
    """Edits a file as it is told; with ``--stream`` as in a terminal."""

    def conversation(self, *options: str) -> None:
        file = self.folder / "add.py"
        file.write_text("def add(a, b):\n    return a - b\n")
        said = self.run(
            "aider", "--model", f"openai/{self.model}", "--openai-api-base", f"{self.url}/v1", "--openai-api-key",
            "none", "--message", "What does add.py do? Answer in one sentence.", "--chat-mode", "ask", "--no-git",
            "--yes-always", "--no-check-update", "--no-show-model-warnings", "--map-tokens", "0", "--analytics-disable",
            *(options or ("--no-stream",)), "add.py",
        )  # fmt: skip
        assert "Tokens:" in said, said[-300:]

    def stream(self) -> None:
        self.conversation("--stream")


class Guidellm(Program):
    """A benchmark with prompts of a file; it asks for whole answers, or, as it does unless told, for streams."""

    def conversation(self, stream: str = "false") -> None:
        data = self.folder / "data.jsonl"
        rows = [{"prompt": text, "output_tokens_count": 16} for text in (NAME, COUNT)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.run(
            "guidellm", "run", "--backend", f"kind=openai_http,target={self.url},model={self.model},stream={stream}",
            "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=2", "--data",
            f"kind=json_file,path={data}", "--disable-console-interactive", HF_HUB_OFFLINE="1",
        )  # fmt: skip

    def stream(self) -> None:
        self.conversation("true")


class LmEval(Program):
    """The log likelihood of endings, and a text that it has continued; it has no streams."""

    def conversation(self) -> None:
        from lm_eval.api.instance import Instance
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        lm: Any = LocalCompletionsAPI(model=self.model, base_url=f"{self.url}/v1/completions", max_length=512)
        endings = (" Paris", " Rome")
        asked = [
            Instance("loglikelihood", {}, ("The capital of France is", ending), i) for i, ending in enumerate(endings)
        ]
        [(paris, is_likeliest), (rome, _)] = lm.loglikelihood(asked)
        assert paris > rome, (paris, rome)
        assert is_likeliest
        until = Instance("generate_until", {}, ("One, two,", {"until": ["\n"], "max_gen_toks": 8}), 0)
        assert lm.generate_until([until])[0]

    def stream(self) -> str:
        return NOT_OFFERED


CLIENTS: dict[str, Callable[[str, str], Any]] = {
    "openai": openai,
    "anthropic": Anthropic,
    "litellm": litellm,
    "litellm-proxy": litellm_proxy,
    "langchain-openai": langchain_openai,
    "langchain-anthropic": langchain_anthropic,
    "llm": Llm,
    "instructor": Instructor,
    "pydantic-ai": PydanticAi,
    "openai-agents": OpenaiAgents,
    "aider": Aider,
    "guidellm": Guidellm,
    "lm-eval": LmEval,
}

if __name__ == "__main__":
    name, *where = sys.argv[1:]
    made = None
    for task in TASKS:
        start = time.monotonic()
        told: dict[str, Any] = {"task": task}
        try:
            made = made or CLIENTS[name](*where)
            told["result"] = getattr(made, task)() or "works"
        except Exception as error:
            told |= {"result": "failed", "why": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
        print(json.dumps(told | {"seconds": round(time.monotonic() - start, 1)}), flush=True)
