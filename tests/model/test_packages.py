"""Downloads by the real pip, from a local folder instead of a package index."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from monolane.errors import FetchError, MonolaneError, ResourceError
from monolane.model.packages import pip_download


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip knows."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "wheel"
    folder.mkdir(parents=True)
    return folder


def fails(into: Path, requirement: str = "tiny==1.0") -> MonolaneError:
    with pytest.raises(MonolaneError) as caught:
        pip_download(requirement, into, lambda count: None)
    assert list(into.parent.iterdir()) == [into], "nothing of pip's is left behind"
    return caught.value


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    executable = tmp_path / "python"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))


def test_wheel_is_downloaded_as_it_is(index: Path, into: Path):
    with zipfile.ZipFile(index / "tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    pip_download("tiny==1.0", into, lambda count: None)
    original = (index / "tiny-1.0-py3-none-any.whl").read_bytes()
    assert [file.read_bytes() for file in into.iterdir()] == [original]
    assert list(into.parent.iterdir()) == [into]


def test_code_in_a_source_archive_is_never_run(index: Path, into: Path, tmp_path: Path):
    marker = tmp_path / "was-run"
    setup = (
        f"open({str(marker)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='tiny', version='1.0')".encode()
    )
    with tarfile.open(index / "tiny-1.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("tiny-1.0/setup.py")
        entry.size = len(setup)
        archive.addfile(entry, io.BytesIO(setup))
    assert isinstance(fails(into), FetchError)
    assert not marker.exists()


def test_package_that_is_gone_is_named(index: Path, into: Path):
    error = fails(into)
    assert isinstance(error, FetchError)
    assert "tiny==1.0 is not on the package index any more" in error.message


def test_index_out_of_reach_is_told_from_a_package_that_is_gone(
    index: Path, into: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "*")
    assert "package index cannot be reached" in fails(into).message


def test_missing_pip_is_said(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    fake_python(tmp_path, monkeypatch, f'exec "{sys.executable}" -S "$@"')  # -S: without installed packages
    assert "ensurepip" in fails(into).message


def test_full_disk_under_pip_is_a_resource_error(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_python(tmp_path, monkeypatch, 'echo "ERROR: OSError: [Errno 28] No space left on device" >&2; exit 1')
    error = fails(into)
    assert isinstance(error, ResourceError)
    assert "MONOLANE_CACHE" in error.hint


def test_other_failures_show_the_last_line_pip_wrote(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_python(tmp_path, monkeypatch, 'echo "WARNING: x" >&2; echo "ERROR: the moon is full" >&2; exit 1')
    assert fails(into).message == "pip could not download tiny==1.0: the moon is full"


def test_bytes_are_reported_while_they_arrive(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    # Waits for us to have noticed the file, instead of for some time.
    fake_python(
        tmp_path,
        monkeypatch,
        f'printf 12345 > "$TMPDIR/part"; while [ ! -e "{tmp_path}/seen" ]; do sleep 0.05; done',
    )

    def arrived(count: int) -> None:
        seen.append(count)
        if count >= 5:
            (tmp_path / "seen").touch()

    pip_download("tiny==1.0", into, arrived)
    assert max(seen) == 5


def test_interruption_ends_pip_too(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_python(tmp_path, monkeypatch, f'echo $$ > "{tmp_path}/pid"; exec sleep 100')

    def interrupt(count: int) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pip_download("tiny==1.0", into, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert list(into.parent.iterdir()) == [into]
