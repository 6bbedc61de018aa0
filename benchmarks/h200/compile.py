"""Compile the kernels of a benchmark beforehand, on any machine: those of a shape, without and with time stamps.

    MONOLANE_CACHE=kernels python benchmarks/h200/compile.py gpt-oss-120b gpt-oss-120b/mxfp4+q8 llama-3.1-8b/fp8

They go to the cache. With that folder as MONOLANE_CACHE, the machine with the H200 compiles nothing, if its NVRTC is of
the same version. A kernel takes 20 to 45 seconds of one processor, and 2 to 3 MB.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor

from monolane.bench.measure.subject import find_model
from monolane.progress import Silent
from monolane.target.cuda.cards import CARDS
from monolane.target.cuda.generate import generate
from monolane.target.cuda.inspect import plan_for
from monolane.target.cuda.jit import compile_kernel

H200 = CARDS["h200"]


def compile_one(subject: str, traced: bool) -> str:
    shape, _, mixture = subject.partition("/")
    _, model = find_model(None, shape, Silent(), mixture or None)
    plan = plan_for(model.config, H200, None, model.weights.format)
    compiled = compile_kernel(generate(plan, H200.shared_limit, traced=traced), H200.architecture)
    return f"{subject}{', with stamps' if traced else ''}: {compiled.resources}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="+", metavar="SHAPE[:LAYERS][/MIXTURE]")
    wanted = [(subject, traced) for subject in parser.parse_args().subjects for traced in (False, True)]
    with ProcessPoolExecutor() as pool:
        for made in [pool.submit(compile_one, *each) for each in wanted]:
            print(made.result(), flush=True)


if __name__ == "__main__":
    main()
