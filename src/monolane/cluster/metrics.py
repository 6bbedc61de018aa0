"""The metrics of all replicas on one page, each with the name of its replica, and those of the front."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families


def joined(pages: Mapping[str, bytes], retried: int) -> bytes:
    """``pages``: what each replica says; ``retried``: how often a request was tried with a further replica."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Joined(pages, retried))
    return generate_latest(registry)


class _Joined:
    def __init__(self, pages: Mapping[str, bytes], retried: int) -> None:
        self._pages, self._retried = pages, retried

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for replica, page in self._pages.items():
            for family in text_string_to_metric_families(page.decode()):
                into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    into.samples.append(sample._replace(labels={**sample.labels, "replica": replica}))
        yield from families.values()
        yield GaugeMetricFamily("monolane:replicas", "Replicas that are ready.", len(self._pages))
        yield CounterMetricFamily("monolane:requests_retried", "Requests tried with a further replica.", self._retried)
