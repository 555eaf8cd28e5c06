"""Models: which names there are, and the conductor behind a name for this caller and this request.

    dirigent-mini, dirigent-ultra    the profiles `mini` and `ultra`
    NAME                             a profile of the configuration
    NAME-2026-11-15                  the same, while its policy is of that day; later there is no such model
    worker/NAME                      one worker, without a planner: a plan of one step
    planner/NAME                     the default profile with another planner, so that baselines are models too

Without a profile `mini`, `dirigent-mini` is one step by the quickest planner here: the trained conductor if a worker
has its adapter and the whole pool is on this machine, else the default profile's. The day of a policy is its profile's
`version`, else that on the card of the trained conductor. To keep an older policy, give it a profile of its own, called
`ultra-2026-06-01`.

Whole conductors are made once. An operator's rule (`routing_rules.py`) is applied before the request's own wishes. A
request and a key can only narrow: fewer workers, tighter limits. Every worker that plans or works on a request is
within what its key and region allow. A name that a caller may not use looks exactly like a name that does not exist.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dirigent.conduct import Conductor
from dirigent.config.file import BUILT_IN_PROFILES, VERSION, choose_profile
from dirigent.config.runtime import Runtime
from dirigent.config.server_settings import Override
from dirigent.config.worker_config import WIRES
from dirigent.errors import ConfigError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.plan.plan import Plan, Step
from dirigent.planners import planner as planner_named
from dirigent.planners import profile_planners
from dirigent.planners.fixed import Fixed
from dirigent.run.step_prompt import ANSWER
from dirigent.serve.http.errors import Problem
from dirigent.serve.http.metrics import breaker_state
from dirigent.serve.policy.json_schema import Checked, checker
from dirigent.serve.policy.routing_rules import note_of
from dirigent.serve.runs.asked import NOTHING_MORE, Asked, Extension, PoolChoice
from dirigent.store.keys import Caller
from dirigent.toml import nearest
from dirigent.workers.adapters import read_cards
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Ability, Worker, WorkerInfo, Wrapper

MINI_CHANGES: dict[str, Any] = {"max_steps": 1, "max_rounds": 1}
"""`dirigent-mini` in a configuration without a profile of that name."""

PIN = re.compile(rf"-{VERSION}\Z")
OLDER = re.compile(rf"(?:mini|ultra)-{VERSION}")
"""The name of a profile that keeps an older policy."""


class Model(msgspec.Struct, frozen=True):
    """How a model's conductor is made."""

    id: str
    about: str
    profile: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    worker: str = ""
    """Set for `worker/NAME`."""
    pins: str = ""
    """The current name of a dated name."""


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    about: str
    workers: tuple[str, ...]
    breakers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Each worker's breaker: closed, open or half-open. For admins only."""
    pins: str | msgspec.UnsetType = msgspec.UNSET
    """On a dated name: the current name that means the same today."""
    object: Literal["model"] = "model"
    owned_by: Literal["dirigent"] = "dirigent"


class ModelList(msgspec.Struct, frozen=True):
    data: tuple[ModelCard, ...]
    object: Literal["list"] = "list"


class Models:
    """Every model of one runtime. Whole conductors are made once; narrowed ones per request."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._models = {model.id: model for model in models_of(runtime)}
        self._whole = {id: self._conductor(model, {}) for id, model in self._models.items()}
        self._planners = {id: self._trained_planner(model) for id, model in self._models.items()}
        self._plain: dict[str, Conductor] = {}
        """The conductors for requests without further wishes, from callers who may use everything."""
        self._off: frozenset[str] = frozenset()
        self._created = int(time.time())

    def cards(self, caller: Caller) -> tuple[ModelCard, ...]:
        """The models that this caller may ask."""
        return tuple(card for id in self._models if (card := self.card(id, caller)) is not None)

    def card(self, id: str, caller: Caller) -> ModelCard | None:
        """One model as a list shows it; None if this caller may not ask it."""
        names = self._usable(id, caller)
        if not names:
            return None
        model, pool = self._models[id], self._whole[id].pool
        breakers = {name: breaker_state(pool[name]) for name in names} if caller.role == "admin" else msgspec.UNSET
        return ModelCard(id, self._created, model.about, names, breakers, model.pins or msgspec.UNSET)

    def renew(self) -> None:
        """Make every conductor anew, because what a policy says has changed. Runs under way keep theirs."""
        self._whole = {id: self._conductor(model, {}) for id, model in self._models.items()}
        self._plain.clear()

    def is_on(self, worker: str) -> bool:
        return worker not in self._off

    def leave_out(self, workers: frozenset[str]) -> None:
        """Take these workers out of every model, and no others. Runs under way keep the workers they have."""
        off = workers & set(self._runtime.pool.names)
        if off != self._off:
            self._off = off
            self._plain.clear()

    def missing(self, id: str, caller: Caller) -> Problem:
        """The error for a model that does not exist for this caller. For a dated name it gives the current one."""
        known = [card.id for card in self.cards(caller)]
        said = f"no model is called {id[:80]!r}"
        floating = PIN.sub("", id)
        if floating != id and floating in known:
            said += f": the policy of that day is not here any more, {floating!r} is its newest"
        else:
            said += nearest(id[:80], known)
        return Problem(404, said, code="model_not_found", param="model")

    def conductor(self, asked: Asked, *, caller: Caller, rule: Override | None = None) -> Conductor:
        """The conductor for one request, or a `Problem` that names the field at fault."""
        is_unbounded = not (
            self._off or caller.is_capped or caller.allow or caller.deny or caller.region
        )  # see `_allowed`
        plain = rule is None and asked.dirigent.without_labels == NOTHING_MORE and is_unbounded
        found = self._plain.get(asked.model) if plain else None
        if found is None:
            found = self._narrowed(asked.model, caller, asked.dirigent, rule)
            if plain:
                self._plain[asked.model] = found
        pool = found.pool
        if asked.options.schema is not None or asked.options.json_mode:
            check = checker(asked.options.schema, param=asked.fields.schema)
            pool = Pool(Checked(worker, check) for worker in pool.values())
        if asked.one_call:
            pool = Pool(OneCall(worker) for worker in pool.values())
        if pool is found.pool and rule is None:
            return found
        return Conductor(
            found.planner,
            pool,
            limits=found.limits,
            fallback=found.fallback,
            repairs=found.repairs,
            reassign=found.reassign,
            profile=found.profile,
            notes=(note_of(rule),) if rule is not None else (),
        )

    def _narrowed(self, id: str, caller: Caller, extension: Extension, rule: Override | None) -> Conductor:
        if not self._usable(id, caller):
            raise self.missing(id, caller)
        if rule is not None:
            id = self._redirected(id, rule, caller)
        model, whole = self._models[id], self._whole[id]
        changes = _narrowed_limits(whole, extension)
        pool = whole.pool.without(self._off) if self._off else whole.pool
        names = _narrowed_names(_ruled(pool, rule, caller), caller, extension)
        if names != whole.pool.names:
            changes |= {"workers": names}
        self._check_planner(model, names, caller, extension, changes, rule)
        try:
            return self._conductor(model, changes) if changes else whole
        except ConfigError as error:
            raise Problem(400, str(error), code="not_possible", param="dirigent") from None

    def _usable(self, id: str, caller: Caller) -> tuple[str, ...]:
        """The model's workers that this caller may use; empty if the model is not the caller's, or does not exist."""
        if id not in self._models:
            return ()
        planner = self._planners[id]
        if planner and not (self.is_on(planner) and _allowed(self._runtime.pool[planner].info, caller)):
            return ()
        infos = self._whole[id].pool.infos
        return tuple(info.name for info in infos if self.is_on(info.name) and _allowed(info, caller))

    def _redirected(self, id: str, rule: Override, caller: Caller) -> str:
        """The model that the rule puts in place of the one asked for. The key must be allowed to use it as well."""
        if rule.profile or rule.planner:
            id = rule.profile or f"planner/{rule.planner}"
        elif rule.pin and id.startswith("worker/"):
            id = f"worker/{rule.pin}"
        if not self._usable(id, caller):
            raise Problem(403, f"{note_of(rule)}, which this key may not use", code="override", param="model")
        return id

    def _trained_planner(self, model: Model) -> str:
        """The worker behind a trained conductor, which reads the request without having a step; else empty."""
        if model.worker:
            return ""
        settings = choose_profile(self._runtime.config, model.profile)[1]
        changes = dict(model.changes)
        if changes.get("planner", settings.planner) != "conductor":
            return ""
        return str(changes.get("planner_worker", settings.planner_worker))

    def _conductor(self, model: Model, changes: Mapping[str, Any]) -> Conductor:
        if not model.worker:
            all_changes = dict(model.changes) | dict(changes)
            return self._runtime.conductor(model.profile, changes=all_changes, called=called(model))
        worker = self._runtime.pool[model.worker]
        if problem := self._runtime.problems.get(model.worker):
            raise ConfigError(problem)
        profile = choose_profile(self._runtime.config)[1]
        limits = msgspec.structs.replace(profile.limits(), **{k: v for k, v in changes.items() if k != "workers"})
        plan = Plan((Step(model.worker, ANSWER),))
        limits = msgspec.structs.replace(limits, max_rounds=1)
        return Conductor(
            Fixed(plan, name=model.id),
            Pool([_Straight(worker) if worker.info.subtask_only else worker]),
            limits=limits,
            profile=model.id,
        )

    def _check_planner(
        self,
        model: Model,
        names: tuple[str, ...],
        caller: Caller,
        extension: Extension,
        changes: dict[str, Any],
        rule: Override | None,
    ) -> None:
        """The planner reads the request too. A worker that only plans need not be on a request's allow-list."""
        if model.worker:
            return
        settings = choose_profile(self._runtime.config, model.profile)[1]
        planner = dict(model.changes).get("planner", settings.planner)
        worker = dict(model.changes).get("planner_worker", settings.planner_worker)
        if not worker or worker in names:
            return
        if planner != "conductor":
            changes["planner_worker"] = ""
            return
        info = self._runtime.pool[worker].info
        choice = extension.pool or PoolChoice()
        outside_region = extension.region is not None and info.region != extension.region
        if rule is not None and worker in rule.deny:
            raise Problem(403, f"{note_of(rule)}, and {model.id} is planned by {worker!r}", code="override")
        if not _allowed(info, caller) or worker in (choice.deny or ()) or outside_region:
            raise Problem(400, f"{model.id} is planned by {worker!r}, which is not allowed here", param="dirigent.pool")


def check_abilities(conductor: Conductor, asked: Asked) -> None:
    """Refuses a request that no worker of the pool can honour, before any worker is paid."""
    fields, options = asked.fields, asked.options
    needs: dict[Ability, str] = {}
    if any(message.images for message in asked.question):
        needs["images"] = fields.messages
    if options.tools:
        needs["tools"] = "tools"
    if options.schema is not None:
        needs["schema"] = fields.response_format
    if options.json_mode:
        needs["json_mode"] = fields.response_format
    if options.stop:
        needs["stop"] = fields.stop
    for ability, param in needs.items():
        if not any(ability in info.abilities for info in conductor.pool.infos):
            names = ", ".join(conductor.pool.names)
            raise Problem(400, f"{param} needs a worker with {ability}; of {names} none has it", param=param)


def _allowed(info: WorkerInfo, caller: Caller) -> bool:
    if caller.is_capped and info.price is None:
        return False  # without a price, its calls cannot be kept within a budget
    if caller.allow and info.name not in caller.allow:
        return False
    return info.name not in caller.deny and (not caller.region or info.region == caller.region)


def _ruled(pool: Pool, rule: Override | None, caller: Caller) -> Pool:
    """The workers that the operator's rule allows. A request cannot add others."""
    if rule is None:
        return pool
    names = tuple(n for n in pool.names if n not in rule.deny and (not rule.pin or n == rule.pin))
    if not any(_allowed(pool[name].info, caller) for name in names):
        raise Problem(403, f"{note_of(rule)}: that leaves no worker for this request", code="override")
    return pool.subset(names)


def _narrowed_names(pool: Pool, caller: Caller, extension: Extension) -> tuple[str, ...]:
    choice = extension.pool or PoolChoice()
    names = tuple(name for name in pool.names if _allowed(pool[name].info, caller))
    pinned = (choice.pin,) if choice.pin is not None else None
    for param, wanted in (("allow", choice.allow), ("deny", choice.deny), ("pin", pinned)):
        for name in wanted or ():
            if name not in names:
                hint = nearest(name[:80], names)
                raise Problem(400, f"no worker is called {name[:80]!r}{hint}", param=f"dirigent.pool.{param}")
    for kept in (choice.allow, pinned):
        names = names if kept is None else tuple(name for name in names if name in kept)
    names = tuple(name for name in names if name not in (choice.deny or ()))
    if extension.region is not None:
        names = tuple(name for name in names if pool[name].info.region == extension.region)
    if not names:
        raise Problem(400, "no worker is left after dirigent.pool and dirigent.region", param="dirigent.pool")
    return names


def _narrowed_limits(whole: Conductor, extension: Extension) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in ("max_cost_usd", "deadline_s", "max_steps", "max_rounds"):
        wanted, most = getattr(extension, name), getattr(whole.limits, name)
        if wanted is None:
            continue
        if most is not None and wanted > most:
            raise Problem(400, f"{name} is {most:g} for this model; {wanted:g} is above it", param=f"dirigent.{name}")
        changes[name] = wanted
    return changes


class _Straight:
    """A worker that is asked by itself: it sees the conversation, even if plans show it its subtask alone."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.info = msgspec.structs.replace(worker.info, subtask_only=False)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        return await self.worker.ask(request, observe=observe)


# ---- the names, and the meaning of each --------------------------------------------------------------------


def models_of(runtime: Runtime) -> list[Model]:
    """Every model that a runtime offers, in the order of its list."""
    profiles = runtime.config.profile or BUILT_IN_PROFILES
    default = choose_profile(runtime.config)[0]
    found = [
        _mini(runtime),
        Model("dirigent-ultra", "plans, works and checks", "ultra" if "ultra" in profiles else default),
        *(Model(f"dirigent-{name}", f"the profile {name}", name) for name in profiles if OLDER.fullmatch(name)),
        *(Model(name, f"the profile {name}", name) for name in profiles),
    ]
    found += _pinned(found, runtime)
    askable = [info for info in runtime.pool.infos if not info.reads_results]
    found += [Model(f"worker/{i.name}", i.about or i.model, worker=i.name) for i in askable]
    for planner in profile_planners():
        model = Model(f"planner/{planner}", f"planned by {planner}", default, (("planner", planner),))
        try:
            runtime.conductor(default, changes=dict(model.changes))
        except ConfigError:
            continue  # such as a trained conductor, if no worker has its adapter
        found.append(model)
    return found


def called(model: Model) -> str:
    """The model's name in traces and usage: its profile, with the day of a dated name. A model that changes its profile
    has a name of its own."""
    if model.changes:
        return model.id
    pin = PIN.search(model.id) if model.pins else None
    return model.profile + (pin[0] if pin else "")


def _mini(runtime: Runtime) -> Model:
    """The profile `mini` if the configuration has one, else a local conductor's step, else one step of the default
    profile; the cheapest worker's if a worker would be prompted to plan that step."""
    about = "one step, quickly"
    if "mini" in runtime.config.profile:
        return Model("dirigent-mini", about, "mini")
    default, settings = choose_profile(runtime.config)
    if settings.planner != "conductor" and (trained := _conductor_worker(runtime)):
        workers = tuple(name for name in settings.workers or runtime.pool.names if name != trained)
        changes = MINI_CHANGES | {"planner": "conductor", "planner_worker": trained, "workers": workers}
        model = Model("dirigent-mini", about, default, tuple(changes.items()))
        with contextlib.suppress(ConfigError):
            runtime.conductor(default, changes=dict(model.changes))
            return model
    if not runtime.config.profile:
        return Model("dirigent-mini", about, "mini")  # the built-in one
    changes = MINI_CHANGES
    if settings.planner == "best" or planner_named(settings.planner).planned_by == "worker":
        changes = changes | {"planner": "cheapest", "planner_worker": ""}  # nobody is prompted to plan one step
    return Model("dirigent-mini", about, default, tuple(changes.items()))


def _conductor_worker(runtime: Runtime) -> str:
    """The worker with the trained conductor's adapter, if the whole pool is on this machine; else an empty string."""
    if any(worker.kind in WIRES for worker in runtime.config.worker):
        return ""
    if not any(worker.adapter for worker in runtime.config.worker):
        return ""
    roles = {name: card.role for name, card in read_cards().items()}
    return next((w.name for w in runtime.config.worker if roles.get(w.adapter) == "conductor"), "")


def _pinned(models: list[Model], runtime: Runtime) -> list[Model]:
    """The same models under a name with their policy's day, if it is known."""
    taken = {model.id for model in models}
    found = []
    for model in models:
        day = _policy_day(model, runtime)
        pin = f"{model.id}-{day}"
        if day and not PIN.search(model.id) and pin not in taken:
            about = f"{model.about}; as of {day}"
            found.append(msgspec.structs.replace(model, id=pin, about=about, pins=model.id))
    return found


def _policy_day(model: Model, runtime: Runtime) -> str:
    """The day of the policy behind a model, from its profile or the card of its adapter; else an empty string."""
    settings = choose_profile(runtime.config, model.profile)[1]
    if settings.version:
        return settings.version
    changes = dict(model.changes)
    if changes.get("planner", settings.planner) != "conductor":
        return ""
    planner = changes.get("planner_worker", settings.planner_worker)
    adapter = next((worker.adapter for worker in runtime.config.worker if worker.name == planner), "")
    card = read_cards().get(adapter) if adapter else None
    return card.date if card is not None else ""


# ---- one tool call at a time ---------------------------------------------------------------------------------


class OneCall(Wrapper):
    """A worker of whose tool calls only the first counts (`parallel_tool_calls: false`, `disable_parallel_tool_use`).

    Not every provider has such a setting, so this does it for all. The worker can make the other calls when it has seen
    the result.
    """

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        reply = await self.worker.ask(request, observe=observe)
        if len(reply.tool_calls) <= 1:
            return reply
        return msgspec.structs.replace(reply, tool_calls=reply.tool_calls[:1])
