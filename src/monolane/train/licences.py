"""Which installed packages may be training text: those whose metadata name permissive licences alone."""

from __future__ import annotations

import re
from importlib.metadata import Distribution

# SPDX identifiers. Licences that ask for more than their own text to be kept (GPL, LGPL, MPL, …) are not here.
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT",
    "MIT-0", "MIT-CMU", "NCSA", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib", "ZPL-2.1",
}  # fmt: skip

# What classifiers and the older free-text field call them. BSD without a number may be either of two clauses or three.
_SPELLINGS = {
    r"\bapache\b.*\b2(\.0)?\b|^apache( software)?( license)?$": "Apache-2.0",
    r"\bbsd\b": "BSD-3-Clause",
    r"\bmit\b": "MIT",
    r"\bpsf\b|python software foundation": "PSF-2.0",
    r"\bisc\b": "ISC",
    r"\bhpnd\b|historical permission": "HPND",
    r"\bunlicense\b": "Unlicense",
    r"\bzope public": "ZPL-2.1",
    r"\bzlib\b": "Zlib",
}
_OTHERS = re.compile(r"gpl|gnu|mozilla|mpl|eclipse|proprietary|commercial|commons|affero|nvidia", re.IGNORECASE)
_EXPRESSION_WORDS = re.compile(r"\bWITH\s+[\w.-]+|\bAND\b|\bOR\b|[()]", re.IGNORECASE)


def permissive_licence(distribution: Distribution) -> str | None:
    """The licences of a package if every one that it names is permissive; otherwise None."""
    named = stated_licences(distribution)
    return " AND ".join(sorted(set(named))) if named and all(name in PERMISSIVE for name in named) else None


def stated_licences(distribution: Distribution) -> list[str]:
    """The licences that the newest kind of metadata names: an SPDX expression, else classifiers, else free text."""
    metadata = distribution.metadata
    if "License-Expression" in metadata:
        return _EXPRESSION_WORDS.sub(" ", metadata["License-Expression"]).split()
    classifiers = [value for value in metadata.get_all("Classifier") or [] if value.startswith("License ::")]
    names = [value.split(" :: ")[-1] for value in classifiers if value != "License :: OSI Approved"]
    texts = metadata.get_all("License") or [""]
    return [_identifier(name) for name in names or texts[0].strip().splitlines()[:1]]


def _identifier(text: str) -> str:
    """The SPDX identifier that a free text means, or the text itself."""
    if not _OTHERS.search(text):
        for pattern, name in _SPELLINGS.items():
            if re.search(pattern, text.strip().lower()):
                return name
    return text.strip()
