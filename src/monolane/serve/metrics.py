"""Prometheus metrics. Those that vLLM has too carry its names, so that its dashboards work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from monolane.engine.async_engine import AsyncEngine
from monolane.engine.result import Completion

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_SECONDS = (1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
TOKENS = (1, 10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000)


class Metrics:
    """Totals are the engine's own counters, read at every scrape; histograms are kept here. ``ceiling`` gives the
    measured read bandwidth of the machine in bytes/s; None where it was not measured."""

    def __init__(self, engine: AsyncEngine, model: str, ceiling: Callable[[], float | None]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Totals(engine, model, self))
        self.bytes_per_second = 0.0  # of the latest answer
        self.ceiling = ceiling

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, ["model_name"], registry=self._registry, buckets=buckets)
            return made.labels(model)

        self._queue = histogram("vllm:request_queue_time_seconds", "Waited for earlier requests.", SECONDS)
        self._first = histogram("vllm:time_to_first_token_seconds", "From the request to its first token.", SECONDS)
        self._each = histogram("vllm:inter_token_latency_seconds", "Mean time per token of a request.", TOKEN_SECONDS)
        self._all = histogram("vllm:e2e_request_latency_seconds", "From the request to its last token.", SECONDS)
        self._prompt = histogram("vllm:request_prompt_tokens", "Tokens of prompts.", TOKENS)
        self._made = histogram("vllm:request_generation_tokens", "Tokens of answers.", TOKENS)

    def observe(self, result: Completion) -> None:
        """Count a complete answer."""
        timings = result.timings
        first_s, each_us = timings.first_token_s, timings.decode_us_per_token
        self._queue.observe(timings.queue_s)
        self._prompt.observe(timings.prompt_tokens)
        self._made.observe(timings.generated_tokens)
        if first_s is None:
            return
        waited_s = timings.queue_s + first_s
        self._first.observe(waited_s)
        self._all.observe(waited_s + (timings.generated_tokens - 1) * (each_us or 0.0) / 1e6)
        if each_us:
            self._each.observe(each_us / 1e6)
            self.bytes_per_second = timings.bytes_per_token * 1e6 / each_us

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Totals:
    """The engine's counters as metrics."""

    def __init__(self, engine: AsyncEngine, model: str, metrics: Metrics) -> None:
        self._engine, self._model, self._metrics = engine, model, metrics

    def collect(self) -> Iterator[Metric]:
        engine, counters = self._engine, self._engine.counters
        yield self._gauge("vllm:num_requests_running", "Requests that are being answered.", engine.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue.", engine.queue_depth)
        yield self._total("vllm:prompt_tokens", "Tokens of prompts.", counters.prompt_tokens)
        yield self._total("vllm:generation_tokens", "Tokens made.", counters.generated_tokens)
        yield self._total("vllm:prefix_cache_queries", "Prompt tokens looked up in caches.", counters.prompt_tokens)
        yield self._total("vllm:prefix_cache_hits", "Prompt tokens found there.", counters.cached_tokens)
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests answered.", labels=["model_name", "finished_reason"]
        )
        for reason, count in counters.finished.items():
            ended.add_metric([self._model, reason], count)
        yield ended
        yield self._total("monolane:requests_failed", "Requests that ended with an error.", counters.failed)
        yield self._total("monolane:requests_refused", "Requests refused: the queue was full.", counters.refused)
        yield self._total("monolane:engine_restarts", "Times the engine had to start again.", counters.restarts)
        yield self._gauge("monolane:engine_ready", "1 when the engine is ready.", engine.state.status == "ready")
        used = self._metrics.bytes_per_second
        yield self._gauge("monolane:memory_read_bytes_per_second", "Weights read while the latest answer came.", used)
        if engine.target is not None and (ceiling := self._metrics.ceiling()) is not None:
            text = "The same as a share of the read bandwidth that this machine gives."
            yield self._gauge("monolane:memory_bandwidth_utilisation_ratio", text, used / ceiling)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], float(value))
        return family

    def _total(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], float(value))
        return family
