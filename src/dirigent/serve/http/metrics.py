"""The counters that Prometheus reads at `/metrics`. No decision depends on them.

Labels come from fixed sets (routes, statuses, models and workers of the configuration), so that no caller can make the
page grow. The counters are plain numbers, changed from one event loop, and become Prometheus's families when the page
is read: every request counts ten things, and the library's own counters, made for threads, take twice as long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dirigent.messages import Attempt
from dirigent.run.trace import Trace, attempts_since
from dirigent.serve.policy.admission import Admission
from dirigent.serve.runs.report import upstream_s
from dirigent.workers.breaker import Breaker
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker, layers

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
OVERHEAD_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class Metrics:
    """The counters of one server."""

    def __init__(self, pool: Pool, admission: Admission) -> None:
        self._requests = _Counter("dirigent_requests", "Requests answered.", ("route", "status"))
        self._runs = _Counter("dirigent_runs", "Runs ended.", ("model", "status"))
        self._calls = _Counter("dirigent_calls", "Calls to workers.", ("worker", "outcome"))
        self._tokens = _Counter("dirigent_tokens", "Tokens billed.", ("worker", "kind"))
        self._overruns = _Counter("dirigent_overruns", "Calls that came to more than was set aside.", ("worker",))
        self._cost = _Counter("dirigent_cost_usd", "What calls cost.", ("worker",))
        self._seconds = _Histogram("dirigent_run_seconds", "Wall-clock time of runs.", ("model",), SECONDS)
        self._overhead = _Histogram(
            "dirigent_overhead_seconds", "Time of runs not spent waiting for workers.", (), OVERHEAD_S
        )
        self.registry = CollectorRegistry()
        runs = (self._requests, self._runs, self._seconds, self._overhead)
        for kept in (*runs, self._calls, self._tokens, self._overruns, self._cost):
            self.registry.register(kept)
        self.registry.register(_Now(pool, admission))

    def count_request(self, route: str, status: int) -> None:
        self._requests.of[route, str(status)] += 1

    def count_run(self, trace: Trace, *, model: str, seconds: float, before: Trace | None = None) -> None:
        """Count a run. Of a resumed run only the part since it paused (`before`) counts."""
        self._runs.of[model, trace.status] += 1
        self._seconds.observe((model,), seconds)
        self._overhead.observe((), max(0.0, seconds - upstream_s(trace, before=before)))
        self.count_calls(attempts_since(trace, before))

    def count_calls(self, attempts: Iterable[Attempt]) -> None:
        """Count the calls of a run, or the calls that wrote the plan of a dry run."""
        for attempt in attempts:
            worker, usage = attempt.worker, attempt.usage
            self._calls.of[worker, "failed" if attempt.error else "done"] += 1
            self._tokens.of[worker, "input"] += usage.input_tokens
            self._tokens.of[worker, "output"] += usage.output_tokens
            self._cost.of[worker,] += attempt.cost_usd
            if attempt.overran:
                self._overruns.of[worker,] += 1

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Counter(Collector):
    """A number for each set of labels."""

    def __init__(self, name: str, about: str, labels: Sequence[str]) -> None:
        self.of: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._name, self._about, self._labels = name, about, labels

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, value in self.of.items():
            family.add_metric(labels, value)
        yield family


class _Histogram(Collector):
    """For each set of labels, how many sizes fell below each bound."""

    def __init__(self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name, self._about, self._labels, self._bounds = name, about, labels, bounds
        self._counts: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        if not labels:
            self._counts[()]  # so that it is on the page before the first run

    def observe(self, labels: tuple[str, ...], size: float) -> None:
        self._counts[labels][bisect_left(self._bounds, size)] += 1
        self._sums[labels] += size

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            family.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), self._sums[labels])
        yield family


class _Now(Collector):
    """Gauges that are read with the page: runs under way, and workers whose breaker is open."""

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
    """Return closed, open or half-open. A worker without a breaker is always closed."""
    return next((layer.state for layer in layers(worker) if isinstance(layer, Breaker)), "closed")
