"""A test run as a short text, to be kept: from pytest's --junitxml to a line per test, with the numbers it recorded.

python benchmarks/h200/summarise.py tests.xml > benchmarks/h200/DATE-tests.txt
"""

from __future__ import annotations

import platform
import subprocess
import sys
import xml.etree.ElementTree as Xml
from collections import Counter
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "transformers", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc")


def main(path: str) -> None:
    cases = Xml.parse(path).getroot().findall(".//testcase")
    outcomes = Counter(outcome(case) for case in cases)
    print(machine())
    print(", ".join(f"{count} {name}" for name, count in outcomes.items()), f"in {sum(map(seconds, cases)):.0f} s")
    for case in cases:
        name = f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
        print(f"{outcome(case):8}{seconds(case):7.1f} s  {name}")
        for recorded in case.findall("properties/property"):
            print(f"{'':20}{recorded.get('name')}: {recorded.get('value')}")
        for reason in case.findall("skipped"):
            print(f"{'':20}{reason.get('message')}")
        for reason in (*case.findall("failure"), *case.findall("error")):
            print(f"{'':20}{(reason.get('message') or '').splitlines()[0]}")


def outcome(case: Xml.Element) -> str:
    return next((found.tag for found in case if found.tag in ("failure", "error", "skipped")), "passed")


def seconds(case: Xml.Element) -> float:
    return float(case.get("time", 0))


def machine() -> str:
    """What it ran on; what cannot be found out is said to be unknown."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "unknown GPU"
    return f"{gpu}; Python {platform.python_version()}, " + ", ".join(f"{name} {installed(name)}" for name in PACKAGES)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main(sys.argv[1])
