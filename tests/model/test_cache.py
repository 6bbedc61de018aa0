from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from monolane import cache
from monolane.errors import ResourceError


def test_cache_lies_in_the_home_folder_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MONOLANE_CACHE", raising=False)
    assert cache.cache_folder("models") == tmp_path / ".cache" / "monolane" / "models"
    monkeypatch.setenv("MONOLANE_CACHE", "~/elsewhere")
    assert cache.cache_folder("kernels") == tmp_path / "elsewhere" / "kernels"


def test_relative_cache_folder_does_not_move_with_the_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONOLANE_CACHE", "here")
    assert cache.cache_root() == tmp_path / "here"


def test_folder_that_cannot_be_made_names_the_way_out(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file" / "models", tmp_path / "file"):
        with pytest.raises(ResourceError, match="MONOLANE_CACHE") as caught:
            cache.make_folder(path)
        assert str(tmp_path / "file") in caught.value.message


def test_disk_space_is_refused_with_both_numbers(tmp_path: Path):
    cache.require_disk_space(tmp_path / "not" / "yet" / "there", 1, "a byte")
    with pytest.raises(ResourceError) as caught:
        cache.require_disk_space(tmp_path / "not" / "yet" / "there", 10**18, "everything")
    assert "everything" in caught.value.message
    assert "1000000000.0 GB" in caught.value.message
    assert "free" in caught.value.message
    assert "MONOLANE_CACHE" in caught.value.hint


def test_atomic_write_appears_only_when_finished(tmp_path: Path):
    path = tmp_path / "new" / "file"
    with cache.atomic_write(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(path.parent.iterdir()) == [path]


def test_failed_atomic_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with cache.atomic_write(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_during_atomic_write_is_a_clear_error(tmp_path: Path):
    with pytest.raises(ResourceError, match="disk is full"), cache.atomic_write(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_sha256_of_a_file_larger_than_a_block(tmp_path: Path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert cache.sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (98_362_432, "98.4 MB"), (1_117_320_768, "1.1 GB")]
)
def test_sizes_are_written_for_people(count: int, text: str):
    assert cache.human_size(count) == text
