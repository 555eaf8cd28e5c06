"""Build workers from their settings, each with the standard wrappers around it.

The module knows every kind of worker but no profiles or planners. A worker that is not usable yet (no key, no extra,
no file) becomes an `Unusable` worker that reports the reason. The `Builder` holds what workers share: connections and
local models.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from dirigent.config.file import Loaded
from dirigent.config.fingerprint import fingerprint
from dirigent.config.presets import preset, vendor
from dirigent.config.worker_config import LOCAL_KINDS, WIRE_ABILITIES, WIRES, WorkerConfig, plugin_kind, runs_programs
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.paths import home
from dirigent.workers.http import HttpClient, HttpWorker, Timeouts
from dirigent.workers.reader import Chooses, Select
from dirigent.workers.role import Role
from dirigent.workers.secret import Secret
from dirigent.workers.wire import Wire
from dirigent.workers.worker import Ability, Price, Worker, WorkerInfo, WorkerOptions
from dirigent.workers.wrappers import Defaults, wrap

if TYPE_CHECKING:
    from dirigent.sandbox.programs import Programs
    from dirigent.workers.local import LocalModel


class Builder:
    """Builds workers from their settings, and holds their shared resources."""

    def __init__(self, loaded: Loaded, client: HttpClient) -> None:
        self.problems: dict[str, str] = {}
        self._loaded = loaded
        self._client = client
        self._models: dict[tuple[str, str], LocalModel] = {}
        self._built: dict[str, Worker] = {}
        self._programs: Programs | None = None

    async def close(self) -> None:
        if self._programs is not None:
            await self._programs.close()
        for model in self._models.values():
            await model.close()

    def build(self, worker: WorkerConfig) -> Worker:
        """Returns the worker. A role is built around the same worker as the other roles of its model."""
        info = msgspec.structs.replace(card(worker), fingerprint=fingerprint(worker, folder=self._loaded.folder))
        try:
            if worker.role is None:
                return self._shared(worker, info)
            named = worker.model_of or worker.name
            model = next(one for one in self._loaded.config.worker if one.name == named)
            runs = self._programs_of(worker) if worker.role.runs else None
            inside = self._shared(model, msgspec.structs.replace(info, name=model.name))
            info = msgspec.structs.replace(
                info, model=inside.info.model, price=inside.info.price, context_tokens=inside.info.context_tokens
            )
            return Role(inside, worker.role, info=info, programs=runs)
        except ConfigError as error:
            self.problems[worker.name] = str(error)
            return Unusable(info, str(error))

    def _shared(self, worker: WorkerConfig, info: WorkerInfo) -> Worker:
        """Returns the worker without its role; built once, so that its roles share its limits and its breaker."""
        if worker.name not in self._built:
            self._built[worker.name] = self._wrapped(worker, info)
        return self._built[worker.name]

    def _wrapped(self, worker: WorkerConfig, info: WorkerInfo) -> Worker:
        bare = self._bare(worker, info)
        if info.reads_results:  # a local worker, which is not called over a wire
            return bare
        wrapped = wrap(
            bare,
            retries=worker.retries,
            breaker_rest_s=worker.breaker_rest_s,
            requests_per_minute=worker.requests_per_minute,
            concurrency=worker.concurrency,
            cache=_reply_folder(worker) if worker.cache else None,
        )
        return with_defaults(wrapped, worker)

    def _bare(self, worker: WorkerConfig, info: WorkerInfo) -> Worker:
        match worker.kind:
            case "scripted":
                from dirigent.workers.scripted import Scripted

                return Scripted(*worker.replies, **_card_fields(info))
            case "recorded":
                from dirigent.workers.recorded import Recorded

                return Recorded(self._path(worker.path), **_card_fields(info))
            case "local":
                return local_worker(worker, self._model(worker), fingerprint=info.fingerprint)
            case "openai" | "anthropic" | "gemini":
                return self._http(worker, info)
            case "select" if worker.path:
                select = Select(self._selector(worker), name=worker.name)
                select.info = msgspec.structs.replace(info, about=info.about or select.info.about)
                return select
            case "vote" | "select":
                from dirigent.planners.vote_counter import Counting
                from dirigent.tasks.answer_forms import same_free_answer

                count = Counting(same_free_answer, name=worker.name, kind=worker.kind)
                count.info = msgspec.structs.replace(info, about=info.about or count.info.about)
                return count
            case "python":
                from dirigent.workers.role import Python

                python = Python(self._programs_of(worker), name=worker.name)
                python.info = msgspec.structs.replace(info, about=info.about or python.info.about)
                return python
            case _:
                return self._plugin_worker(worker, info)

    def _selector(self, worker: WorkerConfig) -> Chooses:
        try:
            from dirigent.learn.selector import Selector
        except ModuleNotFoundError as error:
            raise ConfigError(f'worker "{worker.name}" needs {error.name}: pip install "dirigent[eval]"') from None
        return Selector.load(self._path(worker.path))

    def _http(self, worker: WorkerConfig, info: WorkerInfo) -> Worker:
        return HttpWorker(
            info,
            _wire(worker),
            self._client,
            base_url=worker.base_url,
            key=self._key(worker),
            timeout=worker.timeout,
        )

    def _plugin_worker(self, worker: WorkerConfig, info: WorkerInfo) -> Worker:
        """Builds a worker of a plugin's kind."""
        kind = plugin_kind(worker.kind)
        if kind is None:
            raise ConfigError(f'no kind of worker is called "{worker.kind}" ({self._loaded.place(worker)})')
        options = WorkerOptions(
            model=worker.model,
            base_url=worker.base_url,
            key=self._key(worker),
            path=self._path(worker.path) if worker.path else None,
            extra=worker.extra,
        )
        return kind.make(info, options)

    def _programs_of(self, worker: WorkerConfig) -> Programs:
        """Returns the place where programs run; raises ConfigError if this machine cannot confine them."""
        from dirigent.sandbox.programs import Programs, confinement_problem

        confinement = self._loaded.config.sandbox.programs
        if confinement == "confined" and (problem := confinement_problem()):
            raise ConfigError(f'worker "{worker.name}" runs programs, and {problem}')
        if self._programs is None:
            self._programs = Programs(confinement)
        return self._programs

    def _model(self, worker: WorkerConfig) -> LocalModel:
        """Returns one process for each weights file, with the adapters of all its workers; merged ones are apart."""
        from dirigent.workers.local import CONTEXT_TOKENS, MERGED_SLOTS, SLOTS, LocalModel
        from dirigent.workers.weights import KNOWN

        merged = worker.adapter if worker.merged else ""
        key = (worker.weights, merged)
        if key not in self._models:
            weights = worker.weights if worker.weights in KNOWN else self._path(worker.weights)
            beside = [w for w in self._loaded.config.worker if (w.weights, w.adapter if w.merged else "") == key]
            names = () if merged else dict.fromkeys(w.adapter for w in beside if w.adapter)
            self._models[key] = LocalModel(
                weights,
                adapters={name: self._adapter(name) for name in names},
                merged=self._adapter(merged) if merged else None,
                slots=_agreed(beside, "slots") or (MERGED_SLOTS if merged else SLOTS),
                context_tokens=_agreed(beside, "context_tokens") or CONTEXT_TOKENS,
                threads=_agreed(beside, "threads"),
            )
        return self._models[key]

    def _adapter(self, adapter: str) -> Path:
        return adapter_file(adapter, folder=self._loaded.folder)

    def _key(self, worker: WorkerConfig) -> Secret | None:
        if not worker.api_key_env:
            return None
        value = os.environ.get(worker.api_key_env, "").strip()
        if not value:
            raise ConfigError(
                f'worker "{worker.name}" has no key: set {worker.api_key_env}, '
                f"or remove the worker from {self._loaded.place(worker)}"
            )
        try:
            return Secret(value)
        except ConfigError as error:
            raise ConfigError(f'worker "{worker.name}" cannot use {worker.api_key_env}: {error}') from None

    def _path(self, path: str) -> Path:
        """Returns the path; a relative path starts at the config file's folder."""
        return self._loaded.folder / Path(path).expanduser()


def _agreed(workers: Sequence[WorkerConfig], key: str) -> int | None:
    """Returns a setting of a local model's process, which all its workers share; None if no worker sets it."""
    values = {getattr(worker, key): worker.name for worker in workers if getattr(worker, key) is not None}
    if len(values) > 1:
        said = ", ".join(f'{value} for "{name}"' for value, name in values.items())
        raise ConfigError(f"workers with the same weights share one process: {key} is {said}; give one value")
    return next(iter(values), None)


SHAPING = ("kind", "base_url", "extra", "weights", "adapter", "merged", "path", "replies")
"""Settings that change answers but are not part of a request."""


def _reply_folder(worker: WorkerConfig) -> Path:
    """Returns the folder of cached replies. Other settings give another folder."""
    settings = msgspec.json.encode([getattr(worker, name) for name in SHAPING], order="deterministic")
    return home() / "replies" / worker.name / hashlib.sha256(settings).hexdigest()[:16]


class Unusable:
    """A worker that is not usable yet and reports the reason when it is called."""

    def __init__(self, info: WorkerInfo, problem: str) -> None:
        self.info = info
        self._problem = problem

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        raise WorkerError(self._problem, worker=self.info.name, fault="auth")


def adapter_file(adapter: str, *, folder: Path) -> Path:
    """Returns the file of a packaged adapter by its name, else a path relative to the config file's folder."""
    from dirigent.workers.adapters import packaged

    return packaged().get(adapter) or folder / Path(adapter).expanduser()


def card(worker: WorkerConfig) -> WorkerInfo:
    """Returns the card of a configured worker: what planners, reports and traces know of it."""
    return WorkerInfo(
        name=worker.name,
        about=worker.about,
        kind=worker.kind,
        model=worker.model or worker.weights,
        price=_price(worker),
        region=worker.region,
        context_tokens=worker.context_tokens,
        output_tokens=worker.max_output_tokens,
        skills=worker.skills,
        abilities=_abilities(worker),
        subtask_only=worker.subtask_only or worker.kind in LOCAL_KINDS,
        reads_results=worker.kind in LOCAL_KINDS,
        selects=worker.kind == "select" and bool(worker.path),
        runs_programs=runs_programs(worker),
        second_step=worker.second_step,
    )


def local_worker(worker: WorkerConfig, model: LocalModel, *, fingerprint: str = "") -> Worker:
    """Builds a worker of kind `local` on an open model; its adapter belongs to the model or is merged into it."""
    from dirigent.workers.local import TIMEOUTS, Local

    local = Local(
        model,
        name=worker.name,
        adapter=None if worker.merged else worker.adapter or None,
        about=worker.about,
        skills=worker.skills,
        subtask_only=worker.subtask_only,
        timeout=TIMEOUTS if worker.timeout == Timeouts() else worker.timeout,
        extra=worker.extra,
    )
    info = card(worker)
    local.info = msgspec.structs.replace(
        local.info,
        price=info.price,
        region=info.region,
        output_tokens=info.output_tokens,
        abilities=info.abilities,
        second_step=info.second_step,
        fingerprint=fingerprint,
    )
    return local


def with_defaults(built: Worker, worker: WorkerConfig) -> Worker:
    """Wraps a worker so that its settings fill the gaps in a request."""
    return Defaults(
        built,
        system=worker.system,
        temperature=worker.temperature,
        effort=worker.effort,
        max_output_tokens=worker.max_output_tokens,
        sampling=worker.sampling is not False,
    )


VENDORS_OWN_WIRE = {"anthropic": "anthropic", "gemini": "google"}
"""Wires that only one vendor speaks: at another address the model is still that vendor's, behind a gateway. Many
servers speak the openai wire, so a model's name there does not show its server's price."""


def _price(worker: WorkerConfig) -> Price | None:
    """Returns the configured price, else the vendor's. A model on the user's own server has no price unless set."""
    if worker.price is not None:
        return worker.price
    if worker.kind in ("local", "scripted", *LOCAL_KINDS):
        return Price()
    served_by = vendor(worker.kind, worker.base_url)
    provider = served_by.prices if served_by else VENDORS_OWN_WIRE.get(worker.kind)
    if provider is None:
        return None
    from dirigent.workers.prices import price_of

    return price_of(worker.model, provider=provider)


def _abilities(worker: WorkerConfig) -> frozenset[Ability]:
    """Returns the abilities of kind, vendor and preset, corrected by the worker's own settings."""
    found: set[Ability] = set()
    if worker.kind in WIRES:
        served_by = vendor(worker.kind, worker.base_url)
        found.update(served_by.abilities if served_by else WIRE_ABILITIES[worker.kind])
    elif worker.kind == "local":
        from dirigent.workers.local import ABILITIES

        found.update(ABILITIES)
    elif (kind := plugin_kind(worker.kind)) is not None:
        found.update(kind.abilities)
    if worker.preset:
        found.update(preset(worker.preset)[0].abilities)
    corrections = msgspec.structs.asdict(worker.abilities)
    for ability in get_args(Ability):
        if corrections[ability] is not None:
            (found.add if corrections[ability] else found.discard)(ability)
    return frozenset(found)


def _card_fields(info: WorkerInfo) -> dict[str, Any]:
    return msgspec.structs.asdict(info)


def _wire(worker: WorkerConfig) -> Wire:
    match worker.kind:
        case "anthropic":
            from dirigent.workers.anthropic import AnthropicWire

            return AnthropicWire(extra=worker.extra)
        case "gemini":
            from dirigent.workers.gemini import GeminiWire

            return GeminiWire(extra=worker.extra)
        case _:
            from dirigent.workers.openai import OpenAIWire

            return OpenAIWire(extra=worker.extra)
