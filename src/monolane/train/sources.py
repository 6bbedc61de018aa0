"""Where training text comes from: the Python files of installed packages, and of the standard library."""

from __future__ import annotations

import platform
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from monolane.errors import UsageError
from monolane.train.licences import permissive_licence, stated_licences

# Copies of other packages, with other licences; the packages themselves are usually installed as well.
_COPIES = frozenset({"_vendor", "_vendored", "vendor", "vendored", "third_party", "externals", "extern"})


@dataclass(frozen=True)
class Package:
    """A package and its Python files; ``licence`` is None where it is not certain to be permissive."""

    name: str
    version: str
    licence: str | None
    stated: str  # what the metadata say
    files: tuple[Path, ...]


def installed_packages(sites: Sequence[Path]) -> list[Package]:
    """The packages in some site-packages; without any, those of this environment and the standard library."""
    for site in sites:
        if not site.is_dir():
            raise UsageError(f"There is no folder {site}.", "Give the site-packages of a Python environment.")
    found = {} if sites else {"python": _standard_library()}
    for distribution in distributions(path=[str(site) for site in sites]) if sites else distributions():
        package = _package(distribution)
        found.setdefault(package.name, package)  # as for imports: the first on the path
    return [found[name] for name in sorted(found)]


def _package(distribution: Distribution) -> Package:
    return Package(
        name=re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower(),
        version=distribution.version,
        licence=permissive_licence(distribution),
        stated=", ".join(stated_licences(distribution)),
        files=tuple(sorted(_python_files(distribution))),
    )


def _python_files(distribution: Distribution) -> Iterator[Path]:
    for file in distribution.files or ():
        if file.suffix == ".py" and ".." not in file.parts and not _COPIES.intersection(file.parts):
            yield Path(str(distribution.locate_file(file)))


def _standard_library() -> Package:
    folder = Path(sysconfig.get_path("stdlib"))
    files = (path for path in folder.rglob("*.py") if not _belongs_to_packages(path.relative_to(folder)))
    return Package("python", platform.python_version(), "PSF-2.0", "PSF-2.0", tuple(sorted(files)))


def _belongs_to_packages(path: Path) -> bool:
    return bool({"site-packages", "dist-packages", *_COPIES}.intersection(path.parts))
