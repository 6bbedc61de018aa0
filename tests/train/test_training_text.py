"""Which files of which packages become training text, and what they are as tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_training import install, prepared, program

from monolane.errors import UsageError
from monolane.model.tokenizer import Tokenizer
from monolane.train import sources, text, vocabulary


def packages_of(folder: Path) -> dict[str, dict[str, object]]:
    summary = json.loads((folder / "packages.json").read_text())
    return {package["name"]: package for package in summary["packages"]}


def collected(site: Path, out: Path, workers: int = 1) -> dict[str, list[str]]:
    """The files of each split."""
    text.collect(sources.installed_packages([site]), out, workers)
    return {split: (out / f"{split}.txt").read_bytes().decode().split("\0")[:-1] for split in text.SPLITS}


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT", "MIT"),
        ("License-Expression: Apache-2.0 WITH LLVM-exception", "Apache-2.0"),
        ("License-Expression: (MIT OR Apache-2.0) AND BSD-3-Clause", "Apache-2.0 AND BSD-3-Clause AND MIT"),
        ("License-Expression: MIT OR GPL-2.0-only", None),
        ("License-Expression: MPL-2.0 AND MIT", None),
        ("License: MIT\nClassifier: License :: OSI Approved :: GNU General Public License (GPL)", None),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved\nLicense: Apache License, Version 2.0", "Apache-2.0"),
        ("Classifier: License :: OSI Approved :: Python Software Foundation License", "PSF-2.0"),
        ("License: MIT License\n        \n        Copyright (c) somebody", "MIT"),
        ("License: BSD-like, but not for commercial use", None),
        ("License: NVIDIA Proprietary Software", None),
        ("License: Creative Commons, by MIT", None),
        ("Summary: MIT", None),
    ],
)
def test_only_permissive_licences(tmp_path: Path, metadata: str, licence: str | None) -> None:
    install(tmp_path, "some", metadata, {"some/a.py": program(1)})
    (package,) = sources.installed_packages([tmp_path])
    assert package.licence == licence


def test_what_is_skipped_is_written_down(tmp_path: Path) -> None:
    install(tmp_path / "site", "free", "License-Expression: ISC", {"free/a.py": program(1)})
    install(tmp_path / "site", "other", "License: GPLv3", {"other/a.py": program(2)})
    splits = collected(tmp_path / "site", tmp_path / "data")
    summary = json.loads((tmp_path / "data/packages.json").read_text())
    assert splits == {"train": [program(1)], "validation": []}
    assert summary["skipped"] == {"other": "GPLv3"}
    (package,) = summary["packages"]
    assert package == {
        "name": "free", "version": "1.0", "licence": "ISC", "split": "train", "files": 1, "bytes": len(program(1)),
    }  # fmt: skip


def test_a_package_is_in_one_split(tmp_path: Path) -> None:
    names = [f"package-{number}" for number in range(60)]
    for number, name in enumerate(names):
        files = {f"{name}/{part}.py": program(100 * number + part) for part in range(3)}
        install(tmp_path / "site", name, "License-Expression: MIT", files)
    splits = collected(tmp_path / "site", tmp_path / "data")
    packages = packages_of(tmp_path / "data")
    validating = [name for name in names if packages[name]["split"] == "validation"]
    assert 1 <= len(validating) <= 20
    expected = {program(100 * names.index(name) + part) for name in validating for part in range(3)}
    assert set(splits["validation"]) == expected
    assert len(splits["train"]) == 3 * (60 - len(validating))


def test_a_large_package_does_not_validate() -> None:
    assert text.split_of("aiohttp", share=0.01) == "validation"
    assert text.split_of("aiohttp", share=0.2) == "train"


def test_the_same_text_with_several_processes(tmp_path: Path) -> None:
    files = {f"some/{number}.py": program(number) for number in range(200)}
    install(tmp_path / "site", "some", "License-Expression: MIT", files)
    one, two = (collected(tmp_path / "site", tmp_path / f"{workers}", workers) for workers in (1, 2))
    assert one == two
    assert len(one["train"]) == 200


def test_of_equal_files_one_is_kept(tmp_path: Path) -> None:
    spaced = program(1).replace("\n    ", "\n\n        ")
    install(tmp_path / "site", "first", "License-Expression: MIT", {"first/a.py": program(1), "first/b.py": program(2)})
    install(tmp_path / "site", "second", "License-Expression: MIT", {"second/a.py": spaced, "second/b.py": program(3)})
    assert collected(tmp_path / "site", tmp_path / "data")["train"] == [program(1), program(2), program(3)]


def test_copies_of_other_packages_are_left_out(tmp_path: Path) -> None:
    files = {"some/a.py": program(1), "some/_vendor/b.py": program(2), "../../bin/c.py": program(3)}
    install(tmp_path / "lib/site", "some", "License-Expression: MIT", files)
    assert collected(tmp_path / "lib/site", tmp_path / "data")["train"] == [program(1)]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("x = 1\n", "short"),
        ("# Generated by a tool. DO NOT EDIT.\n" + program(1), "generated"),
        (f"DATA = '{'ab' * 600}'\n" + program(1), "long lines"),
        ("x = [\n" + "    0x00, 0x01, 0x02,\n" * 20 + "]\n", "few letters"),
        (program(1) + "\0", "contains a zero byte"),
        (program(1), ""),
    ],
)
def test_which_files_are_dropped(content: str, why: str) -> None:
    assert text.why_dropped(content) == why


def test_files_that_cannot_be_read_are_dropped(tmp_path: Path) -> None:
    files = {"some/a.py": program(1), "some/b.py": "# x\n" * text.LONGEST_FILE, "some/c.py": ""}
    install(tmp_path / "site", "some", "License-Expression: MIT", files)
    (tmp_path / "site/some/c.py").write_bytes(b"\xff" * 100)
    collected(tmp_path / "site", tmp_path / "data")
    summary = json.loads((tmp_path / "data/packages.json").read_text())
    assert summary["dropped_files"] == {"huge": 1, "not readable as UTF-8": 1}


def test_nothing_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        sources.installed_packages([tmp_path / "missing"])
    with pytest.raises(UsageError, match="no Python files"):
        text.collect(sources.installed_packages([tmp_path]), tmp_path / "data", workers=1)
    with pytest.raises(UsageError, match="There is no"):
        vocabulary.prepare(tmp_path / "data", 300, workers=1)
    with pytest.raises(UsageError, match="cannot have 100 tokens"):
        vocabulary.prepare(tmp_path / "data", 100, workers=1)


def test_tokens_are_the_text(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    tokenizer = Tokenizer.from_file(data / "tokenizer.json", {})
    tokens = np.load(data / "train.npy", allow_pickle=False)
    summary = json.loads((data / "tokens.json").read_text())
    assert (tokens.dtype, tokens.size, tokenizer.vocab_size) == (np.uint16, summary["train"]["tokens"], 300)
    whole = tokenizer.decode(tokens.tolist(), skip_special=False)
    assert whole.split(vocabulary.END_OF_TEXT)[:-1] == (data / "train.txt").read_text().split("\0")[:-1]


def test_any_text_survives_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(prepared(tmp_path) / "tokenizer.json", {})
    for content in ("def f():\n\treturn 'é 🙂 漢字'\n", "  \r\n\n  x", program(5)):
        assert tokenizer.decode(tokenizer.encode(content)) == content


def test_a_file_that_spells_the_end_of_text_goes_on() -> None:
    learnt = vocabulary.learn([program(1).encode()], 300)
    spelled = b"x = '<|endoftext|>'\n"
    tokens = vocabulary.tokenised(learnt.to_str(), [spelled, b"y"], workers=1)
    end = learnt.token_to_id(vocabulary.END_OF_TEXT)
    assert (tokens == end).sum() == 2
    assert learnt.decode(tokens[:-3].tolist()).encode() == spelled
