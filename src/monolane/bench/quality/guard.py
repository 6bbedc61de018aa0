"""Runs one program that nobody has read. ``sandbox.py`` starts this file as a script, in a process of its own:

    python -I -B guard.py FOLDER REPORT MEMORY_BYTES CPU_S < PROGRAM

Where the kernel grants namespaces, the program has no network, no file that it can write to except in FOLDER, which is
in memory, and no process that outlives it. What became of it is written to the file descriptor REPORT, one JSON object
per line. This file imports nothing of Monolane: the program finds nothing of ours loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path

NEW_MOUNTS, NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x20000, 0x10000000, 0x20000000, 0x40000000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, READ_ONLY = 442, -100, 0x8000, 1  # of the system call mount_setattr
SET_PARENT_DEATH_SIGNAL = 1  # of prctl
FILE_BYTES = 16 << 20


def main() -> None:
    folder, report, memory_bytes, cpu_s = sys.argv[1], *map(int, sys.argv[2:])
    code = sys.stdin.buffer.read()
    _say(report, isolated=_isolate(folder))
    child = os.fork()  # the first process of its namespace: when it ends, the kernel kills all others
    if child:
        status = os.waitpid(child, 0)[1]
        _say(report, exit=os.waitstatus_to_exitcode(status))
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.chdir(folder)
    for limited, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limited, (value, value))
    error = _error_of(code)
    _say(report, error=error)
    os._exit(0)  # without what the program has left for the end


def _say(report: int, **fact: object) -> None:
    os.write(report, json.dumps(fact).encode() + b"\n")


def _error_of(code: bytes) -> str | None:
    """The name of the exception that ended the program; None where it came to its end."""
    try:
        exec(compile(code, "answer", "exec"), {"__name__": "answer"})
    except SystemExit:
        return "exit"  # before the tests had ended
    except BaseException as error:
        return type(error).__name__
    return None


def _isolate(folder: str) -> bool:
    """Move into namespaces of our own; False where the system does not grant them."""
    if sys.platform != "linux":
        return False
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_USER | NEW_MOUNTS | NEW_NETWORK | NEW_PROCESSES):
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        return False
    attributes = struct.pack("4Q", READ_ONLY, 0, 0, 0)
    read_only = libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, len(attributes)) == 0
    size = f"size={4 * FILE_BYTES}".encode()
    return read_only and bool(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, size) == 0)


if __name__ == "__main__":
    main()
