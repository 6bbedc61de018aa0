"""Standard headers for the kernels that tests compile, parsed once: parsing is a third of each compilation."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from monolane.target import emulation
from monolane.target.cpu.compiler import FLAGS, HEADERS, find_compiler
from monolane.target.cpu.machine import vector_level

INCLUDE = re.compile(r"^#include <(?!sanitizer/)(.+)>$", re.MULTILINE)


def precompile_headers(folder: Path) -> None:
    """Names a compiler in the environment that begins with these headers. GCC reads the header itself where its flags
    for the processor are not those that it was parsed with."""
    compiler = find_compiler()
    if "CXX" in os.environ or compiler is None or "Free Software Foundation" not in compiler.version:
        return
    texts = [file.read_text() for headers in {*HEADERS, *emulation.HEADERS} for file in sorted(headers.iterdir())]
    names = sorted({name for text in texts for name in INCLUDE.findall(text)})
    # Some are of another processor.
    includes = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names)
    options = [flag for flag in (*FLAGS, *vector_level().flags) if flag != "-shared"]
    made_of = hashlib.sha256(repr((compiler, options, includes)).encode()).hexdigest()[:16]
    header = folder / f"standard-{made_of}.hpp"
    parsed = header.with_suffix(".hpp.gch")
    if not parsed.exists():
        header.write_text(includes)
        with tempfile.TemporaryDirectory(dir=folder) as work:  # another run of the tests may do the same
            made = Path(work) / parsed.name
            command = [*compiler.command, *options, "-x", "c++-header", str(header), "-o", str(made)]
            subprocess.run(command, check=True)
            made.replace(parsed)
    os.environ["CXX"] = shlex.join([*compiler.command, "-include", str(header)])
