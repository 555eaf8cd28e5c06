"""Models: the conductor behind a model's name, for this caller and this request.

Which names there are, and what each stands for, is `catalogue.py`'s part. Whole conductors are made once. An operator's
rule (`overrides.py`) is applied here, before the request's own wishes. A request and a key can only narrow: fewer
workers, tighter limits. Nobody who plans or works on a request is outside what its key and region allow. Names a caller
may not use look exactly like names there are not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from dirigent.conduct import Conductor
from dirigent.config.file import choose_profile
from dirigent.config.runtime import Runtime
from dirigent.config.server_settings import Override
from dirigent.errors import ConfigError
from dirigent.messages import Message, Observe, Reply, Request, ignore
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Fixed
from dirigent.run.step_prompt import ANSWER
from dirigent.serve.apis.chat.wire import Extension, ModelCard, PoolChoice
from dirigent.serve.http.errors import Problem
from dirigent.serve.http.metrics import breaker_state
from dirigent.serve.policy.catalogue import PIN, Model, called, models_of
from dirigent.serve.policy.json_schema import Checked, checker
from dirigent.serve.policy.routing_rules import note_of
from dirigent.store.keys import Caller
from dirigent.toml import nearest
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Ability, Worker, WorkerInfo

NOTHING_MORE = Extension()


class Models:
    """Every model of one runtime. Whole conductors are made once; narrowed ones per request."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._models = {model.id: model for model in models_of(runtime)}
        self._whole = {id: self._conductor(model, {}) for id, model in self._models.items()}
        self._planners = {id: self._trained_planner(model) for id, model in self._models.items()}
        self._plain: dict[str, Conductor] = {}
        """What a model is to a request that asks for nothing more than it, from a caller who may use everything."""
        self._created = int(time.time())

    def cards(self, caller: Caller) -> tuple[ModelCard, ...]:
        """What this caller may ask."""
        return tuple(card for id in self._models if (card := self.card(id, caller)) is not None)

    def card(self, id: str, caller: Caller) -> ModelCard | None:
        """One model as a list shows it; None where this caller may not ask it."""
        names = self._usable(id, caller)
        if not names:
            return None
        model, pool = self._models[id], self._whole[id].pool
        breakers = {name: breaker_state(pool[name]) for name in names} if caller.role == "admin" else msgspec.UNSET
        return ModelCard(id, self._created, model.about, names, breakers, model.pins or msgspec.UNSET)

    def missing(self, id: str, caller: Caller) -> Problem:
        """What is said of a model that is not there for this caller; of a pin, which name goes on."""
        known = [card.id for card in self.cards(caller)]
        said = f"no model is called {id[:80]!r}"
        floating = PIN.sub("", id)
        if floating != id and floating in known:
            said += f": the policy of that day is not here any more, {floating!r} is its newest"
        else:
            said += nearest(id[:80], known)
        return Problem(404, said, code="model_not_found", param="model")

    def conductor(
        self, id: str, *, caller: Caller, extension: Extension, options: Request, rule: Override | None = None
    ) -> Conductor:
        """The conductor for one request, or a `Problem` that names the field at fault."""
        plain = rule is None and extension == NOTHING_MORE and _is_unbounded(caller)
        if plain and (found := self._plain.get(id)) is not None:
            return _with(found, options, notes=())
        narrowed = self._narrowed(id, caller, extension, rule)
        if plain:
            self._plain[id] = narrowed
        return _with(narrowed, options, notes=(note_of(rule),) if rule is not None else ())

    def _narrowed(self, id: str, caller: Caller, extension: Extension, rule: Override | None) -> Conductor:
        if not self._usable(id, caller):
            raise self.missing(id, caller)
        if rule is not None:
            id = self._redirected(id, rule, caller)
        model, whole = self._models[id], self._whole[id]
        changes = _narrowed_limits(whole, extension)
        names = _narrowed_names(_ruled(whole.pool, rule, caller), caller, extension)
        if names != whole.pool.names:
            changes |= {"workers": names}
        self._check_planner(model, names, caller, extension, changes, rule)
        try:
            return self._conductor(model, changes) if changes else whole
        except ConfigError as error:
            raise Problem(400, str(error), code="not_possible", param="dirigent") from None

    def _usable(self, id: str, caller: Caller) -> tuple[str, ...]:
        """The model's workers that this caller may use; none where the model is not theirs, or there is none."""
        if id not in self._models:
            return ()
        planner = self._planners[id]
        if planner and not _allowed(self._runtime.pool[planner].info, caller):
            return ()
        return tuple(info.name for info in self._whole[id].pool.infos if _allowed(info, caller))

    def _redirected(self, id: str, rule: Override, caller: Caller) -> str:
        """The model that the rule puts in the place of the one asked for. It must be the key's to use as well."""
        if rule.profile or rule.planner:
            id = rule.profile or f"planner/{rule.planner}"
        elif rule.pin and id.startswith("worker/"):
            id = f"worker/{rule.pin}"
        if not self._usable(id, caller):
            raise Problem(403, f"{note_of(rule)}, which this key may not use", code="override", param="model")
        return id

    def _trained_planner(self, model: Model) -> str:
        """The worker behind a trained conductor, who reads the request without being given a step; else nobody."""
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
        return Conductor(Fixed(plan, name=model.id), Pool([_straight(worker)]), limits=limits, profile=model.id)

    def _check_planner(
        self,
        model: Model,
        names: tuple[str, ...],
        caller: Caller,
        extension: Extension,
        changes: dict[str, Any],
        rule: Override | None,
    ) -> None:
        """Who plans reads the request too. A worker that only plans need not be on a request's allow-list."""
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


def needs_of(question: tuple[Message, ...], options: Request) -> dict[Ability, str]:
    """What somebody in the pool must be able to do, with the field that asks for it."""
    needs: dict[Ability, str] = {}
    if any(message.images for message in question):
        needs["images"] = "messages"
    if options.tools:
        needs["tools"] = "tools"
    if options.schema is not None:
        needs["schema"] = "response_format"
    if options.json_mode:
        needs["json_mode"] = "response_format"
    if options.stop:
        needs["stop"] = "stop"
    return needs


def check_abilities(conductor: Conductor, question: tuple[Message, ...], options: Request) -> None:
    """Refuse what nobody in the pool can honour, before anyone is paid."""
    for ability, param in needs_of(question, options).items():
        if not any(ability in info.abilities for info in conductor.pool.infos):
            names = ", ".join(conductor.pool.names)
            raise Problem(400, f"{param} needs a worker with {ability}; of {names} none has it", param=param)


def _allowed(info: WorkerInfo, caller: Caller) -> bool:
    if caller.budgets_usd and info.price is None:
        return False  # what costs nobody knows how much cannot be held to a budget
    if caller.allow and info.name not in caller.allow:
        return False
    return info.name not in caller.deny and (not caller.region or info.region == caller.region)


def _is_unbounded(caller: Caller) -> bool:
    """Whether `_allowed` says yes to every worker."""
    return not (caller.budgets_usd or caller.allow or caller.deny or caller.region)


def _ruled(pool: Pool, rule: Override | None, caller: Caller) -> Pool:
    """The workers that the operator's rule leaves. A request cannot bring the others back."""
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


def _with(conductor: Conductor, options: Request, *, notes: tuple[str, ...]) -> Conductor:
    """The conductor with notes for its trace, over workers whose JSON is checked where JSON was asked for."""
    pool = conductor.pool
    if options.schema is not None or options.json_mode:
        check = checker(options.schema)
        pool = Pool(Checked(worker, check) for worker in pool.values())
    elif not notes:
        return conductor
    return Conductor(
        conductor.planner,
        pool,
        limits=conductor.limits,
        fallback=conductor.fallback,
        repairs=conductor.repairs,
        reassign=conductor.reassign,
        profile=conductor.profile,
        notes=notes,
    )


def _straight(worker: Worker) -> Worker:
    """Asked by itself, a worker sees the conversation, also one that in plans wants its subtask alone."""
    return _Straight(worker) if worker.info.subtask_only else worker


class _Straight:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.info = msgspec.structs.replace(worker.info, subtask_only=False)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        return await self.worker.ask(request, observe=observe)
