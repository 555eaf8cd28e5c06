"""Models: which conductor stands behind a model's name, for this caller and this request.

    dirigent-mini, dirigent-ultra    the profiles `mini` and `ultra`
    NAME                             a profile of the configuration
    worker/NAME                      one worker, asked straight: a plan of one step
    planner/NAME                     the default profile with another planner, so that baselines are models too

A request and a key can only narrow: fewer workers, tighter limits. Nobody who plans or works on a request is
outside what its key and region allow. Names a caller may not use look exactly like names there are not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from dirigent.conduct import Conductor
from dirigent.config import BUILT_IN_PROFILES, KNOWN_PLANNERS, choose_profile
from dirigent.errors import ConfigError
from dirigent.messages import Message, Observe, Reply, Request, ignore
from dirigent.plan import Plan, Step
from dirigent.planners.fixed import Fixed
from dirigent.pool import Pool
from dirigent.prompt import ANSWER
from dirigent.runtime import Runtime
from dirigent.serve.checked import Checked, checker
from dirigent.serve.problems import Problem
from dirigent.serve.wire import Extension, ModelCard, PoolChoice
from dirigent.store.keys import Caller
from dirigent.toml import nearest
from dirigent.worker import Ability, Worker, WorkerInfo

MINI_CHANGES: Mapping[str, Any] = {"max_steps": 1, "max_rounds": 1}
"""What `dirigent-mini` is over a configuration that has no profile of that name."""


class Model(msgspec.Struct, frozen=True):
    """How to make a model's conductor."""

    id: str
    about: str
    profile: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    worker: str = ""
    """Set for `worker/NAME`."""


class Models:
    """Every model of one runtime. Whole conductors are made once; narrowed ones per request."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._models = {model.id: model for model in _models(runtime)}
        self._whole = {id: self._conductor(model, {}) for id, model in self._models.items()}
        self._created = int(time.time())

    def cards(self, caller: Caller) -> tuple[ModelCard, ...]:
        """What this caller may ask."""
        return tuple(card for id in self._models if (card := self.card(id, caller)) is not None)

    def card(self, id: str, caller: Caller) -> ModelCard | None:
        model = self._models.get(id)
        if model is None:
            return None
        pool = self._whole[id].pool
        names = tuple(name for name in pool.names if _allowed(pool[name].info, caller))
        return ModelCard(id, self._created, model.about, names) if names else None

    def conductor(self, id: str, *, caller: Caller, extension: Extension, options: Request) -> Conductor:
        """The conductor for one request, or a `Problem` that names the field at fault."""
        if self.card(id, caller) is None:
            known = [card.id for card in self.cards(caller)]
            raise Problem(
                404, f"no model is called {id[:80]!r}{nearest(id[:80], known)}", code="model_not_found", param="model"
            )
        model, whole = self._models[id], self._whole[id]
        changes = _narrowed_limits(whole, extension)
        names = _narrowed_names(whole.pool, caller, extension)
        if names != whole.pool.names:
            changes |= {"workers": names}
        self._check_planner(model, names, caller, extension, changes)
        try:
            conductor = self._conductor(model, changes) if changes else whole
        except ConfigError as error:
            raise Problem(400, str(error), code="not_possible", param="dirigent") from None
        return _with_check(conductor, options)

    def _conductor(self, model: Model, changes: Mapping[str, Any]) -> Conductor:
        if not model.worker:
            return self._runtime.conductor(model.profile, changes=dict(model.changes) | dict(changes))
        worker = self._runtime.pool[model.worker]
        if problem := self._runtime.problems.get(model.worker):
            raise ConfigError(problem)
        profile = choose_profile(self._runtime.config)[1]
        limits = msgspec.structs.replace(profile.limits(), **{k: v for k, v in changes.items() if k != "workers"})
        plan = Plan((Step(model.worker, ANSWER),))
        limits = msgspec.structs.replace(limits, max_rounds=1)
        return Conductor(Fixed(plan, name=model.id), Pool([_straight(worker)]), limits=limits, profile=model.id)

    def _check_planner(
        self, model: Model, names: tuple[str, ...], caller: Caller, extension: Extension, changes: dict[str, Any]
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


def _models(runtime: Runtime) -> list[Model]:
    profiles = runtime.config.profile or BUILT_IN_PROFILES
    default = choose_profile(runtime.config)[0]
    mini = {} if "mini" in profiles else MINI_CHANGES
    found = [
        Model("dirigent-mini", "one step, quickly", "mini" if "mini" in profiles else default, tuple(mini.items())),
        Model("dirigent-ultra", "plans, works and checks", "ultra" if "ultra" in profiles else default),
        *(Model(name, f"the profile {name}", name) for name in profiles),
        *(Model(f"worker/{i.name}", i.about or i.model, worker=i.name) for i in runtime.pool.infos),
    ]
    for planner in KNOWN_PLANNERS:
        model = Model(f"planner/{planner}", f"planned by {planner}", default, _planned_by(planner, runtime))
        try:
            runtime.conductor(default, changes=dict(model.changes))
        except ConfigError:
            continue  # such as a trained conductor, where no worker has the adapter
        found.append(model)
    return found


def _planned_by(planner: str, runtime: Runtime) -> tuple[tuple[str, Any], ...]:
    """The default profile's settings that change with its planner: a trained conductor plans and does not work."""
    settings = choose_profile(runtime.config)[1]
    if settings.planner != "conductor" or planner == "conductor":
        return (("planner", planner),)
    names = settings.workers or runtime.pool.names
    workers = tuple(name for name in names if name != settings.planner_worker)
    return (("planner", planner), ("planner_worker", ""), ("workers", workers))


def _allowed(info: WorkerInfo, caller: Caller) -> bool:
    if caller.budgets_usd and info.price is None:
        return False  # what costs nobody knows how much cannot be held to a budget
    if caller.allow and info.name not in caller.allow:
        return False
    return info.name not in caller.deny and (not caller.region or info.region == caller.region)


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


def _with_check(conductor: Conductor, options: Request) -> Conductor:
    """The conductor over workers whose JSON is checked, where JSON was asked for."""
    if options.schema is None and not options.json_mode:
        return conductor
    check = checker(options.schema)
    return Conductor(
        conductor.planner,
        Pool(Checked(worker, check) for worker in conductor.pool.values()),
        limits=conductor.limits,
        fallback=conductor.fallback,
        repairs=conductor.repairs,
        reassign=conductor.reassign,
        profile=conductor.profile,
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
