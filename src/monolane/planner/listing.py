"""``monolane plan --list``: the machines and models that the planner knows by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from monolane.cache import human_size
from monolane.planner import columns
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.machines import MACHINES, THIS
from monolane.planner.source import from_entry


@dataclass(frozen=True)
class ListedModel:
    name: str
    title: str
    parameters: int
    active_parameters: int
    bytes_per_token: float
    published_in: str
    assumed: dict[str, str]


def models() -> list[ListedModel]:
    found = []
    for entry in CATALOGUE.values():
        described = from_entry(entry)
        shape, precision = described.shape, described.as_published()
        size = sum(precision.active_bytes(weights) * count for weights, count in shape.all_weights())
        found.append(
            ListedModel(
                entry.name,
                entry.title,
                shape.parameters,
                shape.active_parameters,
                size,
                precision.name,
                dict(entry.assumed),
            )
        )
    return found


def text() -> str:
    machines = [["machine", "memory", "bandwidth"]]
    for machine in MACHINES.values():
        assert machine.bandwidth is not None, "only the machine this runs on may have no nominal bandwidth"
        machines.append([machine.name, human_size(machine.memory), columns.speed(machine.bandwidth)])
    rows = [["model", "", "parameters", "active", "per token", "published in"]]
    for model in models():
        counts = (columns.count(model.parameters), columns.count(model.active_parameters))
        name = model.name + (" ?" if model.assumed else "")
        rows.append([name, model.title, *counts, human_size(round(model.bytes_per_token)), model.published_in])
    return "\n".join(
        [
            *columns.table(machines),
            f"{THIS}: the machine this runs on, once 'monolane ceiling' has measured it. Several: 8xH200.",
            "",
            *columns.table(rows, left=2),
            "?: not all of its figures are confirmed; its plan says which.",
            "A model may also be a folder with config.json, a .gguf file or a hub id.",
        ]
    )


def as_json() -> dict[str, Any]:
    return {
        "machines": [asdict(machine) for machine in MACHINES.values()],
        "models": [asdict(model) for model in models()],
    }
