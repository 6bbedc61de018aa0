"""The options that several commands share, and those of the server."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane.errors import UsageError

if TYPE_CHECKING:
    from monolane.engine.params import SamplingParams

MACHINE, SAMPLING, SERVER = "Machine", "Sampling", "Server"

_A_MODEL = (
    "A name (see 'monolane models'), a hub id, a folder with safetensors, or a .gguf file. "
    "Default: the best coder that this machine runs fast."
)
ModelSpec = Annotated[str | None, typer.Argument(metavar="MODEL", help=_A_MODEL)]

Device = Annotated[
    str,
    typer.Option(
        help="auto, cuda, cpu, or interpreter (NumPy, slow).", rich_help_panel=MACHINE, envvar="MONOLANE_DEVICE"
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Threads that compute. Default: as many as suit this machine.",
        rich_help_panel=MACHINE,
        envvar="MONOLANE_WORKERS",
    ),
]
Lanes = Annotated[
    int | None,
    typer.Option(
        help="Tensor-parallel shares of the model. Default: 1, or a Laneformer's own.",
        rich_help_panel=MACHINE,
        envvar="MONOLANE_LANES",
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        help="Where lanes run: together in one process, or apart, in a process each.",
        rich_help_panel=MACHINE,
        envvar="MONOLANE_PLACEMENT",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="q8 or q4: quantise 16-bit weights while loading. Default: as they are stored.",
        rich_help_panel=MACHINE,
        envvar="MONOLANE_WEIGHTS",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        "--max-model-len",
        help="Tokens that prompt and answer may have together. Default: chosen for the model.",
        rich_help_panel=MACHINE,
        envvar="MONOLANE_CONTEXT",
    ),
]

MaxTokens = Annotated[
    int | None,
    typer.Option(help="Tokens to make at most. Default: until the context is full.", rich_help_panel=SAMPLING),
]
_TEMPERATURE = typer.Option(
    help="0: the likeliest token every time; 1: as the model was trained; higher: wilder.", rich_help_panel=SAMPLING
)
_TOP_K = typer.Option(help="Keep the K likeliest tokens only; 0: all.", rich_help_panel=SAMPLING)
_TOP_P = typer.Option(help="Keep the likeliest tokens that hold this much probability.", rich_help_panel=SAMPLING)
_MIN_P = typer.Option(help="Keep tokens at least this many times as likely as the likeliest.", rich_help_panel=SAMPLING)
_REPETITION = typer.Option(help="Above 1: tokens that occurred become less likely.", rich_help_panel=SAMPLING)
Temperature = Annotated[float, _TEMPERATURE]
TopK = Annotated[int, _TOP_K]
TopP = Annotated[float, _TOP_P]
MinP = Annotated[float, _MIN_P]
RepetitionPenalty = Annotated[float, _REPETITION]
# The same for conversations: where they are not given, they are as the model's makers suggest.
ChatTemperature = Annotated[float | None, _TEMPERATURE]
ChatTopK = Annotated[int | None, _TOP_K]
ChatTopP = Annotated[float | None, _TOP_P]
ChatMinP = Annotated[float | None, _MIN_P]
ChatRepetitionPenalty = Annotated[float | None, _REPETITION]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same answer. Default: a new one.", rich_help_panel=SAMPLING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text that ends the answer; may be given several times.", rich_help_panel=SAMPLING),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the model's end tokens.", rich_help_panel=SAMPLING)
]
PresencePenalty = Annotated[
    float, typer.Option(help="Taken off the logit of each token of the answer so far.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="The same, once for every time it occurred.", rich_help_panel=SAMPLING)
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID=NUMBER",
        help="Added to the logit of a token; may be given several times.",
        rich_help_panel=SAMPLING,
    ),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        help="With --json: log probabilities of each token and of the N likeliest ones.", rich_help_panel=SAMPLING
    ),
]

# --- options of the server; each can also be set in a file or by an environment variable ---

MAX_KEY_CHARS = 1024


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Read a TOML file of options. The command line and the environment override it."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Check --config.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}.", "Write lines such as: port = 8080") from error
    parameters = {option.lstrip("-"): one for one in context.command.params for option in one.opts}
    names = {option: parameter.name for option, parameter in parameters.items()}
    lists = {one.name for one in parameters.values() if one.nargs == -1 or getattr(one, "multiple", False)}
    del names["config"]
    settings = {}
    for key, value in values.items():
        name = names.get(key.replace("_", "-")) or names.get(key)
        if name is None:
            raise UsageError(f"{path} sets {key!r}, which is no option.", f"There are: {', '.join(sorted(names))}.")
        settings[name] = [value] if name in lists and isinstance(value, str) else value
    context.default_map = settings
    return path


ServedModels = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL...",
        help=f"{_A_MODEL} Several, or a folder that holds several: the first is loaded at once, the others when they "
        "are asked for.",
        envvar="MONOLANE_MODEL",
    ),
]
KeepAlive = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long a model that nobody uses stays loaded, such as 5m, 1h, 0; -1: until its memory is needed. "
        "Default: -1.",
        envvar="MONOLANE_KEEP_ALIVE",
        rich_help_panel=SERVER,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Options from a TOML file, spelled as here without the dashes: port = 8080.",
        callback=_read_config,
        is_eager=True,
        envvar="MONOLANE_CONFIG",
        rich_help_panel=SERVER,
    ),
]
Host = Annotated[
    str,
    typer.Option(
        help="Address to listen on; 0.0.0.0 lets other machines in.", envvar="MONOLANE_HOST", rich_help_panel=SERVER
    ),
]
Port = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="Port to listen on; 0: any free one.", envvar="MONOLANE_PORT", rich_help_panel=SERVER
    ),
]
ServedName = Annotated[
    str | None,
    typer.Option(
        "--served-model-name",
        help="What clients call the model; further names after commas. Default: its name.",
        envvar="MONOLANE_SERVED_MODEL_NAME",
        rich_help_panel=SERVER,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="What clients must show. Others on this machine can see it: prefer a file or the environment.",
        envvar="MONOLANE_API_KEY",
        rich_help_panel=SERVER,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A file that holds the API key.", envvar="MONOLANE_API_KEY_FILE", rich_help_panel=SERVER
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Another site whose pages may use the server; may be given several times.",
        envvar="MONOLANE_ALLOW_ORIGIN",
        rich_help_panel=SERVER,
    ),
]
Ray = Annotated[
    bool,
    typer.Option(
        "--ray",
        help="Serve with replicas of the engine on a Ray cluster: several machines, or several GPUs of this one.",
        envvar="MONOLANE_RAY",
        rich_help_panel=SERVER,
    ),
]
Replicas = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="With --ray: how many replicas; 1-4: as many as the load wants, between these bounds. Default: 1.",
        envvar="MONOLANE_REPLICAS",
        rich_help_panel=SERVER,
    ),
]
QueueLimit = Annotated[
    int,
    typer.Option(
        min=0, max=4096, help="Requests that may wait.", envvar="MONOLANE_QUEUE_LIMIT", rich_help_panel=SERVER
    ),
]
MaxAnswerTokens = Annotated[
    int | None,
    typer.Option(
        min=1, help="Tokens that any answer may have.", envvar="MONOLANE_MAX_ANSWER_TOKENS", rich_help_panel=SERVER
    ),
]
MaxAnswerSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Seconds that any answer may take once it has begun, so that one that loops does not hold everyone.",
        envvar="MONOLANE_MAX_ANSWER_SECONDS",
        rich_help_panel=SERVER,
    ),
]
MaxConnections = Annotated[
    int,
    typer.Option(
        min=1,
        max=65536,
        help="Connections at a time.",
        envvar="MONOLANE_MAX_CONNECTIONS",
        rich_help_panel=SERVER,
    ),
]
LogLevel = Annotated[
    str,
    typer.Option(
        help="debug, info (a line for each request), warning or error.",
        envvar="MONOLANE_LOG_LEVEL",
        rich_help_panel=SERVER,
    ),
]
Ceiling = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        metavar="GB/S",
        help="Read bandwidth of this machine, against which the use of it is shown. "
        "Default: what 'monolane ceiling' has measured.",
        envvar="MONOLANE_CEILING",
        rich_help_panel=SERVER,
    ),
]


def api_key(key: str | None, file: Path | None) -> str | None:
    """The API key that clients must send, from the option or from the file."""
    if key is not None and file is not None:
        raise UsageError("An API key and a file with one were given.", "Choose --api-key or --api-key-file.")
    if file is not None:
        try:
            with file.open(encoding="utf-8") as opened:
                key = opened.read(4 * MAX_KEY_CHARS).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The API key in {file} cannot be read: {error}.", "Check --api-key-file.") from error
    if key is not None and not re.fullmatch(rf"[!-~]{{1,{MAX_KEY_CHARS}}}", key):
        raise UsageError(
            "The API key is empty, too long, or has characters that headers cannot carry.",
            f"Use 1 to {MAX_KEY_CHARS} letters, digits and signs, without spaces.",
        )
    return key


def ceiling(given_gb_per_s: float | None, device: str, workers: int | None) -> Callable[[], float | None]:
    """A function that gives the read bandwidth of this machine in bytes/s: as given, or as measured before."""
    if given_gb_per_s is not None:
        return lambda: given_gb_per_s * 1e9
    from monolane.cli.stored_ceiling import StoredCeiling

    on_cpu = device in ("cpu", "interpreter") or (device == "auto" and workers is not None)
    return StoredCeiling("cpu" if on_cpu else device)


def log_level(name: str) -> str:
    levels = ("debug", "info", "warning", "error")
    if name.lower() not in levels:
        raise UsageError(f"--log-level is {name!r}.", f"Choose one of: {', '.join(levels)}.")
    return name.lower()


def given_sampling(command: typer.Context) -> dict[str, Any]:
    """The sampling options of a command that have a value, by the names of the fields of SamplingParams; checked."""
    from monolane.engine.params import SamplingParams

    named = {name: value for name, value in command.params.items() if name in SamplingParams.__dataclass_fields__}
    given = {name: value for name, value in named.items() if value is not None}
    if "logit_bias" in given:
        given["logit_bias"] = _biases(given["logit_bias"])
    SamplingParams(**given)
    return given


def sampling_params(command: typer.Context) -> SamplingParams:
    from monolane.engine.params import SamplingParams

    return SamplingParams(**given_sampling(command))


def _biases(entries: list[str]) -> dict[int, float]:
    """The entries of --logit-bias, each ID=NUMBER."""
    result = {}
    for entry in entries:
        token, _, number = entry.partition("=")
        try:
            result[int(token)] = float(number)
        except ValueError as error:
            raise UsageError(f"--logit-bias is {entry!r}.", "Write ID=NUMBER, such as --logit-bias 42=-5.") from error
    return result
