"""Third-party clients against a server with a real model: a conversation, a stream, a tool loop, a schema with each.

``make test-clients`` runs it. The table goes to benchmarks/clients/table.json, and, for people, to table.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

from client import CLIENTS, TASKS

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
PACKAGES = {"litellm-proxy": "litellm", "aider": "aider-chat", "lm-eval": "lm_eval"}
TABLE = HERE / "table.json"
MODEL = "qwen2.5-coder-0.5b"
CLIENT_S = 900.0


def python_of(client: str) -> Path:
    """aider needs other versions of everything, and has an environment of its own."""
    return ENVIRONMENTS / ("aider" if client == "aider" else "all") / "bin/python"


def version_of(client: str) -> str | None:
    """The version that is installed; None where it is not."""
    ask = f"from importlib.metadata import version; print(version({PACKAGES.get(client, client)!r}))"
    if not python_of(client).exists():
        return None
    done = subprocess.run([python_of(client), "-c", ask], capture_output=True, text=True)
    return done.stdout.strip() or None


def attempt(client: str, url: str, model: str) -> dict[str, Any]:
    """What came of each task."""
    command = [python_of(client), HERE / "client.py", client, url, model]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_S)
        lines, why = done.stdout, done.stderr.strip()[-300:]
    except subprocess.TimeoutExpired as error:
        lines, why = (error.stdout or b"").decode(), f"no end after {CLIENT_S:.0f} s"
    told = [json.loads(line) for line in lines.splitlines() if line.startswith('{"task"')]
    results = {entry.pop("task"): entry for entry in told}
    return {task: results.get(task, {"result": "failed", "why": why}) for task in TASKS}


@contextmanager
def server(model: str) -> Iterator[str]:
    """The server of this checkout on a free port."""
    command = [sys.executable, "-m", "monolane", "serve", model, "--port", "0", "--context", "8192"]
    command += ["--max-answer-seconds", "120"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if " is ready on " in line and (found := re.search(r"http://[\w.:]+", line)):
                yield found[0]
                return
        raise SystemExit("The server did not start.")
    finally:
        process.terminate()
        process.wait(30)


def table(rows: Sequence[dict[str, Any]], model: str) -> str:
    head = f"Each client, with {model} behind it. `make test-clients` makes this table anew.\n\n"
    lines = ["| client | version | " + " | ".join(TASKS) + " |", "|---" * (2 + len(TASKS)) + "|"]
    for row in rows:
        cells = [row.get(task, {}).get("result", "") for task in TASKS]
        lines.append(f"| {row['client']} | {row['version'] or 'not installed'} | " + " | ".join(cells) + " |")
    notes = [
        f"- {row['client']}, {task}: {row[task]['why']}" for row in rows for task in TASKS if "why" in row.get(task, {})
    ]
    return head + "\n".join(lines) + "\n" + ("\n" + "\n".join(notes) + "\n" if notes else "")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("clients", nargs="*", default=list(CLIENTS), help="which ones; all, unless told otherwise")
    options.add_argument("--server", help="the address of a server that runs already")
    options.add_argument("--model", default=MODEL)
    asked = options.parse_args()
    before = json.loads(TABLE.read_text())["clients"] if TABLE.exists() else []
    rows = {row["client"]: row for row in before}
    with server(asked.model) if not asked.server else nullcontext(asked.server) as url:
        for client in asked.clients:
            row: dict[str, Any] = {"client": client, "version": version_of(client)}
            rows[client] = row | (attempt(client, url, asked.model) if row["version"] else {})
            print(
                client,
                *(f"{task}: {told['result']}" for task, told in rows[client].items() if task in TASKS),
                flush=True,
            )
            write([rows[name] for name in CLIENTS if name in rows], asked.model)
    if any("why" in row.get(task, {}) for row in rows.values() for task in TASKS):
        raise SystemExit("Some clients do not work: see benchmarks/clients/table.md")


def write(rows: Sequence[dict[str, Any]], model: str) -> None:
    about = {"model": model, "monolane": metadata.version("monolane"), "clients": rows}
    TABLE.write_text(json.dumps(about, indent=1) + "\n")
    TABLE.with_suffix(".md").write_text(table(rows, model))


if __name__ == "__main__":
    main()
