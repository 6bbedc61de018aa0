"""Standard headers for the kernels that tests compile, parsed once: parsing is a third of each compilation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from monolane.target import emulation
from monolane.target.cpu.compiler import FLAGS, HEADERS, find_compiler
from monolane.target.cpu.machine import vector_level

INCLUDE = re.compile(r"^#include <(?!sanitizer/).+>$", re.MULTILINE)


def precompile_headers(folder: Path) -> None:
    """Names a compiler in the environment that begins with these headers. GCC reads the header itself where its flags
    for the processor are not those that it was parsed with."""
    compiler = find_compiler()
    if "CXX" in os.environ or compiler is None or "Free Software Foundation" not in compiler.version:
        return
    texts = [file.read_text() for headers in {*HEADERS, *emulation.HEADERS} for file in sorted(headers.iterdir())]
    lines = sorted({line for text in texts for line in INCLUDE.findall(text)})
    includes = "\n".join([f"// {compiler} {FLAGS} {vector_level()}".replace("\n", " "), *lines, ""])
    header, parsed = folder / "standard.hpp", folder / "standard.hpp.gch"
    if not parsed.exists() or header.read_text() != includes:
        header.write_text(includes)
        options = [flag for flag in (*FLAGS, *vector_level().flags) if flag != "-shared"]
        command = [*compiler.command, *options, "-x", "c++-header", str(header), "-o", str(parsed)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return  # on another processor than x86 some of them are not there
    os.environ["CXX"] = shlex.join([*compiler.command, "-include", str(header)])
