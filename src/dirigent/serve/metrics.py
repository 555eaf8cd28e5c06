"""Metrics: what Prometheus reads at `/metrics`. Counters only; nothing decides by them.

Labels come from fixed sets (routes, statuses, models and workers of the configuration), so that no caller can
make the page grow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dirigent.pool import Pool
from dirigent.serve.translate import upstream_s
from dirigent.store.admission import Admission
from dirigent.trace import Trace, attempts_since
from dirigent.worker import Worker, layers
from dirigent.workers.breaker import Breaker

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
OVERHEAD_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class Metrics:
    """The counters of one server."""

    def __init__(self, pool: Pool, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("dirigent_requests", "Requests answered.", ("route", "status"), registry=self.registry)
        self._runs = Counter("dirigent_runs", "Runs ended.", ("model", "status"), registry=self.registry)
        self._seconds = Histogram(
            "dirigent_run_seconds", "Wall-clock time of runs.", ("model",), buckets=SECONDS, registry=self.registry
        )
        self._overhead = Histogram(
            "dirigent_overhead_seconds", "Time of runs not spent waiting for workers.", buckets=OVERHEAD_S,
            registry=self.registry,
        )  # fmt: skip
        self._calls = Counter("dirigent_calls", "Calls to workers.", ("worker", "outcome"), registry=self.registry)
        self._tokens = Counter("dirigent_tokens", "Tokens billed.", ("worker", "kind"), registry=self.registry)
        self._cost = Counter("dirigent_cost_usd", "What calls cost.", ("worker",), registry=self.registry)
        self.registry.register(_Now(pool, admission))
        # Looking a label up takes longer than counting, and there are few labels.
        self._requests_of = functools.cache(self._requests.labels)
        self._runs_of = functools.cache(self._runs.labels)
        self._seconds_of = functools.cache(self._seconds.labels)
        self._calls_of = functools.cache(self._calls.labels)
        self._tokens_of = functools.cache(self._tokens.labels)
        self._cost_of = functools.cache(self._cost.labels)

    def count_request(self, route: str, status: int) -> None:
        self._requests_of(route, str(status)).inc()

    def count_run(self, trace: Trace, *, model: str, seconds: float, before: Trace | None = None) -> None:
        """Enter a run; of one that was resumed, what came since it paused (`before`)."""
        self._runs_of(model, trace.status).inc()
        self._seconds_of(model).observe(seconds)
        self._overhead.observe(max(0.0, seconds - upstream_s(trace, before=before)))
        for attempt in attempts_since(trace, before):
            self._calls_of(attempt.worker, "failed" if attempt.error else "done").inc()
            self._tokens_of(attempt.worker, "input").inc(attempt.usage.input_tokens)
            self._tokens_of(attempt.worker, "output").inc(attempt.usage.output_tokens)
            self._cost_of(attempt.worker).inc(attempt.cost_usd)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Now(Collector):
    """What is true at the moment of reading: runs under way, and workers that rest after failing."""

    def __init__(self, pool: Pool, admission: Admission) -> None:
        self._pool = pool
        self._admission = admission

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("dirigent_in_flight", "Requests under way.", value=self._admission.in_flight)
        available = GaugeMetricFamily("dirigent_worker_available", "0: its breaker is open.", labels=("worker",))
        for name, worker in self._pool.items():
            available.add_metric((name,), 0.0 if breaker_state(worker) == "open" else 1.0)
        yield available


def breaker_state(worker: Worker) -> str:
    """closed, open or half-open; a worker without a breaker is always closed."""
    return next((layer.state for layer in layers(worker) if isinstance(layer, Breaker)), "closed")
