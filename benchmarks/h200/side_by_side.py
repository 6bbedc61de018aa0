"""Time several shapes, or versions of the source, in one run on one GPU: compiled and loaded side by side, timed alone.

    python benchmarks/h200/side_by_side.py qwen2.5-coder-1.5b/q4_k_m gpt-oss-20b:4
    python benchmarks/h200/side_by_side.py --tree old=../before/src --tree new=src --trace llama-3.2-1b/q4_k_m

A subject is a shape with made-up weights, perhaps with some of its layers alone (``:4``), and perhaps a mixture of
formats (``/q4_k_m``); ``--tree`` measures it with each of several source folders. A line has µs per token of four
requests for 400 tokens behind a prompt of 128, greedy, by the device's clock; then the means of each quarter of the
tokens, because a token takes longer the more splits its context has. Compiling and loading take most of the time and no
GPU, so every subject has a process of its own; while one is timed, all others are stopped.

An environment variable that a source folder reads, to try a constant, is given as part of its tree:
``--tree small=src,SLOT=28``.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PROMPT, TOKENS, REQUESTS, TRACED = 128, 400, 4, 8
QUARTERS = 4
SETTLE_S = 0.5  # until what stopped processes have launched has ended
FOLDER = "MONOLANE_TURNS"  # a variable of the processes: where they register, and the lock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="+", metavar="SHAPE[:LAYERS][/MIXTURE]")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER[,VARIABLE=VALUE]")
    parser.add_argument("--trace", action="store_true", help="also show where a token's time goes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="processes at a time")
    options = parser.parse_args()
    if FOLDER in os.environ:
        measure(options.subjects[0], os.environ.get("MONOLANE_TREE", ""), options.device, options.trace)
        return
    trees = options.tree or ["=src"]
    with TemporaryDirectory() as turns, ThreadPoolExecutor(options.jobs) as pool:
        commands = [(tree, subject) for subject in options.subjects for tree in trees]
        list(pool.map(lambda each: run(each[0], each[1], options, turns), commands))


def run(tree: str, subject: str, options: argparse.Namespace, turns: str) -> None:
    """One subject in a process of its own, which prints its line."""
    name, _, rest = tree.partition("=")
    folder, *variables = rest.split(",")
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = dict(variable.split("=", 1) for variable in variables)
    environment = os.environ | settings | {"PYTHONPATH": path, FOLDER: turns, "MONOLANE_TREE": name}
    trace = ["--trace"] if options.trace else []
    command = [sys.executable, __file__, subject, "--device", options.device, *trace]
    if subprocess.run(command, env=environment, check=False).returncode:
        print(f"{name:12} {subject:34} failed", flush=True)


@contextmanager
def turn() -> Iterator[None]:
    """The GPU alone: all other processes that have registered are stopped, and go on afterwards."""
    folder = Path(os.environ[FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [
            int(file.name) for file in folder.iterdir() if file.name.isdecimal() and int(file.name) != os.getpid()
        ]
        stopped = [process for process in others if sent(process, signal.SIGSTOP)]
        time.sleep(SETTLE_S)
        try:
            yield
        finally:
            for process in stopped:
                sent(process, signal.SIGCONT)


def sent(process: int, number: signal.Signals) -> bool:
    """Send a signal to a process, which may have ended meanwhile."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def measure(subject: str, tree: str, device: str, trace: bool) -> None:
    import numpy as np

    from monolane.bench.measure import timing
    from monolane.bench.measure.subject import find_model
    from monolane.bench.trace import run as traces
    from monolane.bench.trace.stamps import report
    from monolane.progress import Silent
    from monolane.target import open_target

    registered = Path(os.environ[FOLDER]) / str(os.getpid())
    registered.touch()
    try:
        shape, _, mixture = subject.partition("/")
        _, model = find_model(None, shape, Silent(), mixture or None)
        target = open_target(model.config, model.weights, device=device, context=PROMPT + TOKENS)
        prompt = np.random.default_rng(0).integers(0, model.config.vocab, PROMPT).tolist()
        if trace and isinstance(target, traces.Stamping):
            traces.of_target(subject, target, prompt, 1)  # compiles the kernel with time stamps
        with turn():
            if settle := getattr(target, "settle", None):  # a GPU's target was opened while others used the GPU
                settle()
            answers = [timing.ask(target, timing.fixed_length(prompt, TOKENS)) for _ in range(REQUESTS + 1)][1:]
            us = [float(answer.gaps_us.mean()) for answer in answers]
            shown = [f"{tree:12} {subject:34}" + "".join(f"{each:10,.1f}" for each in us)]
            shown[0] += f"{target.bytes_per_token / 1e6:12,.1f} MB |"
            gaps = np.median([answer.gaps_us for answer in answers], axis=0)
            shown[0] += "".join(f"{float(part.mean()):9,.1f}" for part in np.array_split(gaps, QUARTERS))
            if trace and isinstance(target, traces.Stamping):
                shown.append(report(traces.of_target(subject, target, prompt, TRACED)))
        print("\n".join(shown), flush=True)
        target.close()
    finally:
        registered.unlink()


if __name__ == "__main__":
    main()
