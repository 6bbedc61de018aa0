"""Prometheus metrics. Those that vLLM has too carry its names, so that its dashboards work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from monolane.engine.async_engine import AsyncEngine
from monolane.engine.result import Completion
from monolane.engine.state import Counters

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_SECONDS = (1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
TOKENS = (1, 10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000)


HISTOGRAMS = {
    "queue": ("vllm:request_queue_time_seconds", "Waited for earlier requests.", SECONDS),
    "first": ("vllm:time_to_first_token_seconds", "From the request to its first token.", SECONDS),
    "each": ("vllm:inter_token_latency_seconds", "Mean time per token of a request.", TOKEN_SECONDS),
    "all": ("vllm:e2e_request_latency_seconds", "From the request to its last token.", SECONDS),
    "prompt": ("vllm:request_prompt_tokens", "Tokens of prompts.", TOKENS),
    "made": ("vllm:request_generation_tokens", "Tokens of answers.", TOKENS),
}


class Metrics:
    """Totals are the engines' own counters, read at every scrape; histograms are kept here. ``engines`` by the names of
    their models. ``ceiling`` gives the measured read bandwidth of the machine in bytes/s; None where it was not
    measured."""

    def __init__(self, engines: Mapping[str, AsyncEngine], ceiling: Callable[[], float | None]) -> None:
        self._registry = CollectorRegistry()
        histograms = {
            key: Histogram(name, text, ["model_name"], registry=self._registry, buckets=buckets)
            for key, (name, text, buckets) in HISTOGRAMS.items()
        }
        self._of = {name: ModelMetrics(name, histograms) for name in engines}
        self._registry.register(_Totals(engines, self._of, ceiling))

    def of(self, model: str) -> ModelMetrics:
        return self._of[model]

    def text(self) -> bytes:
        return generate_latest(self._registry)


class ModelMetrics:
    """The histograms of one model."""

    def __init__(self, model: str, histograms: Mapping[str, Histogram]) -> None:
        self._histograms = {key: histogram.labels(model) for key, histogram in histograms.items()}
        self.bytes_per_second = 0.0  # of the latest answer

    def observe(self, result: Completion) -> None:
        """Count a complete answer."""
        timings = result.timings
        first_s, each_us = timings.first_token_s, timings.decode_us_per_token
        kept = self._histograms
        kept["queue"].observe(timings.queue_s)
        kept["prompt"].observe(timings.prompt_tokens)
        kept["made"].observe(timings.generated_tokens)
        if first_s is None:
            return
        waited_s = timings.queue_s + first_s
        kept["first"].observe(waited_s)
        kept["all"].observe(waited_s + (timings.generated_tokens - 1) * (each_us or 0.0) / 1e6)
        if each_us:
            kept["each"].observe(each_us / 1e6)
            self.bytes_per_second = timings.bytes_per_token * 1e6 / each_us


class _Totals:
    """The engines' counters as metrics."""

    def __init__(
        self,
        engines: Mapping[str, AsyncEngine],
        metrics: Mapping[str, ModelMetrics],
        ceiling: Callable[[], float | None],
    ) -> None:
        self._engines, self._metrics, self._ceiling = engines, metrics, ceiling

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("vllm:num_requests_running", "Requests that are being answered.", lambda one: one.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue.", lambda one: one.queue_depth)
        yield self._total("vllm:prompt_tokens", "Tokens of prompts.", lambda made: made.prompt_tokens)
        yield self._total("vllm:generation_tokens", "Tokens made.", lambda made: made.generated_tokens)
        looked_up = "Prompt tokens looked up in caches."
        yield self._total("vllm:prefix_cache_queries", looked_up, lambda made: made.prompt_tokens)
        yield self._total("vllm:prefix_cache_hits", "Prompt tokens found there.", lambda made: made.cached_tokens)
        labels = ["model_name", "finished_reason"]
        ended = CounterMetricFamily("vllm:request_success", "Requests answered.", labels=labels)
        for name, engine in self._engines.items():
            for reason, count in engine.counters.finished.items():
                ended.add_metric([name, reason], count)
        yield ended
        yield self._total("monolane:requests_failed", "Requests that ended with an error.", lambda made: made.failed)
        refused = "Requests refused: the queue was full."
        yield self._total("monolane:requests_refused", refused, lambda made: made.refused)
        again = "Times the engine had to start again."
        yield self._total("monolane:engine_restarts", again, lambda made: made.restarts)
        is_ready = "1 when the engine is ready; 0 also where its model is not loaded."
        yield self._gauge("monolane:engine_ready", is_ready, lambda one: one.state.status == "ready")
        used = GaugeMetricFamily(
            "monolane:memory_read_bytes_per_second", "Weights read while the latest answer came.", labels=["model_name"]
        )
        share = GaugeMetricFamily(
            "monolane:memory_bandwidth_utilisation_ratio",
            "The same as a share of the read bandwidth that this machine gives.",
            labels=["model_name"],
        )
        for name, metrics in self._metrics.items():
            used.add_metric([name], metrics.bytes_per_second)
            if self._engines[name].target is not None and (ceiling := self._ceiling()) is not None:
                share.add_metric([name], metrics.bytes_per_second / ceiling)
        yield used
        yield share

    def _gauge(self, name: str, text: str, value: Callable[[AsyncEngine], float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        for model, engine in self._engines.items():
            family.add_metric([model], float(value(engine)))
        return family

    def _total(self, name: str, text: str, value: Callable[[Counters], float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        for model, engine in self._engines.items():
            family.add_metric([model], float(value(engine.counters)))
        return family
