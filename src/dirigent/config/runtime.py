"""Runtime: the pool, the conductors and the store of a configuration, opened and closed together.

`open_runtime` builds every worker but calls none. It stores a missing key or extra as that worker's problem, so that
`pool list` still works, and raises it when a conductor needs the worker. Connections, the local model's process and the
database open on first use.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dirigent.conduct import Conductor
from dirigent.config.build import Builder
from dirigent.config.discovery import discover, small_pool_reason, toml_of
from dirigent.config.file import (
    Config,
    Loaded,
    Profile,
    can_plan,
    choose_profile,
    config_path,
    load_config,
    parse_config,
)
from dirigent.config.fingerprint import fingerprint
from dirigent.errors import ConfigError
from dirigent.learn.cards import FILE as CARDS
from dirigent.learn.cards import Card, read_cards
from dirigent.paths import home
from dirigent.plan.plan import Plan
from dirigent.plan.planner import Planner
from dirigent.planners import PlannerSpec, Setup, profile_planners
from dirigent.planners import planner as planner_named
from dirigent.planners.fixed import Fixed, Single
from dirigent.planners.learned import FittedPolicy, left_out
from dirigent.planners.vote_counter import Counting
from dirigent.tasks.answer_forms import same_free_answer
from dirigent.toml import nearest
from dirigent.workers.http import HttpClient
from dirigent.workers.pool import Pool
from dirigent.workers.reader import Chooses, Select
from dirigent.workers.worker import Worker

if TYPE_CHECKING:
    from dirigent.store import Store

STORE_FILE = "dirigent.db"
NO_WORKER = "the configuration has no worker: add a [[worker]], or run `dirigent init --force` to write a new file"


async def load(option: Path | None = None) -> Loaded:
    """Returns the configuration of the named or local file, else one made from what this machine offers."""
    path = config_path(option)
    if path is not None:
        return load_config(path)
    machine = await discover()
    found = parse_config(toml_of(machine))
    return msgspec.structs.replace(found, note=small_pool_reason(machine))


@asynccontextmanager
async def open_runtime(loaded: Loaded, *, cards: Mapping[str, Card] | None = None) -> AsyncIterator[Runtime]:
    """Builds the workers; at the end closes everything that was opened.

    `cards` are the measured figures of the workers; by default those that the configuration names.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(HttpClient())
        cards = measured_cards(loaded) if cards is None else cards
        loaded = with_cards(loaded, cards)
        builder = Builder(loaded, client)
        stack.push_async_callback(builder.close)
        workers = [builder.build(worker) for worker in loaded.config.worker]
        yield Runtime(loaded, Pool(workers), builder.problems, cards)


def measured_cards(loaded: Loaded) -> dict[str, Card]:
    """Returns the card of each worker that was calibrated, and has not changed since."""
    config = loaded.config
    if config.cards.table:
        found = read_cards(loaded.folder / Path(config.cards.table).expanduser())
    else:
        folders = (loaded.folder / Path(p.policy).expanduser() for p in config.profile.values() if p.policy)
        kept = next((folder for folder in folders if (folder / CARDS).is_file()), None)
        found = read_cards(kept) if kept is not None else {}
    return {
        worker.name: card
        for worker in config.worker
        if (card := found.get(worker.name)) is not None
        and card.fingerprint == fingerprint(worker, folder=loaded.folder)
    }


def with_cards(loaded: Loaded, cards: Mapping[str, Card]) -> Loaded:
    """Returns the configuration with the measured figures behind each worker's `about`."""
    workers = tuple(
        msgspec.structs.replace(worker, about="; ".join(filter(None, (worker.about, cards[worker.name].about))))
        if worker.name in cards
        else worker
        for worker in loaded.config.worker
    )
    return msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, worker=workers))


def open_store(config: Config) -> AbstractAsyncContextManager[Store]:
    """Opens the store that the configuration names, else a SQLite file under DIRIGENT_HOME."""
    from dirigent.store import Store

    url = config.store.url
    if variable := config.store.url_env:
        url = os.environ.get(variable, "")
        if not url:
            raise ConfigError(f"[store] has no address: set {variable}, or remove url_env")
    return Store.open(url or home() / STORE_FILE)


class Runtime:
    """The pool of a configuration, and the conductors of its profiles."""

    def __init__(
        self, loaded: Loaded, pool: Pool, problems: Mapping[str, str], cards: Mapping[str, Card] | None = None
    ) -> None:
        self.loaded = loaded
        self.config = loaded.config
        self.pool = pool
        self.problems = problems
        """Worker -> the reason why it is not usable yet, with the fix."""
        self.cards = cards or {}
        """The measured figures of each worker that has not changed since."""
        self._policies: dict[tuple[Path, str, int], LearnedPolicy] = {}

    @property
    def problem(self) -> str:
        """All reasons why workers are not usable, each once; empty if all are usable."""
        return "; ".join(dict.fromkeys(self.problems.values()))

    def conductor(
        self,
        profile: str = "",
        *,
        changes: Mapping[str, Any] | None = None,
        plan: Plan | None = None,
        called: str = "",
    ) -> Conductor:
        """Returns a profile's conductor. `changes` replace settings of the profile, `plan` replaces its planner.
        Its traces carry the profile's name, or `called`."""
        name, settings = choose_profile(self.config, profile)
        if changes:
            settings = _changed(settings, changes, names=self.pool.names)
        spec = planner_named(settings.planner)
        only_plans = spec.planned_by == "trained worker"
        pool = self._usable_pool(settings, only_plans=only_plans)
        learned = self.policy(settings)
        if learned is not None:
            pool = Pool([*pool.values(), *learned.workers])
        if plan is not None:
            for step in plan.steps:
                pool.require(step.worker)
        falls_back = plan is None and settings.fallback == "single"
        return Conductor(
            Fixed(plan)
            if plan is not None
            else _planner(spec, settings, pool, everybody=self.pool, right=self._right(), learned=learned),
            pool,
            limits=settings.limits(),
            fallback=Single("" if only_plans else settings.planner_worker) if falls_back else None,
            repairs=settings.repairs,
            reassign=settings.reassign,
            profile=called or name,
        )

    def _right(self) -> dict[str, float]:
        """Returns the share of right answers of each worker that was measured by labels."""
        cards = self.cards.items()
        return {name: card.right.right for name, card in cards if card.right is not None and not card.estimated}

    def policy(self, settings: Profile) -> LearnedPolicy | None:
        """Returns the policy of a profile's folder, read again only if it has changed; None if it names no folder."""
        if not settings.policy:
            return None
        try:
            from dirigent.learn.policy import Policy, policy_folder
            from dirigent.learn.selector import Selector
        except ModuleNotFoundError as error:
            raise ConfigError(f'a learned policy needs {error.name}: pip install "dirigent[eval]"') from None
        folder = policy_folder(settings.policy, self.loaded.folder)
        file = folder / "policy.json"
        key = (folder, settings.operating_point, file.stat().st_mtime_ns if file.is_file() else 0)
        if key not in self._policies:
            policy = Policy.load(folder)
            if settings.operating_point not in ("", "off"):
                policy.point(settings.operating_point)  # raises for a point that the policy does not have
            chooses = Selector.load(folder) if policy.points else None
            self._policies = {k: v for k, v in self._policies.items() if k[:2] != key[:2]}
            self._policies[key] = LearnedPolicy(policy, self.pool, chooses)
        return self._policies[key]

    def left_out(self) -> dict[str, str]:
        """Returns worker -> why a policy of the configuration does not use it; raises ConfigError for a bad policy."""
        found: dict[str, str] = {}
        for settings in self.config.profile.values():
            if (learned := self.policy(settings)) is not None:
                found |= left_out(learned.policy, self.pool.infos, new=not settings.unlike)
        return found

    def _usable_pool(self, settings: Profile, *, only_plans: bool) -> Pool:
        pool = self.pool.subset(settings.workers) if settings.workers else self.pool
        if not pool:
            raise ConfigError(NO_WORKER)
        planner_names: tuple[str, ...] = ()
        if only_plans:
            if not settings.planner_worker:
                raise ConfigError(
                    f'planner "{settings.planner}" needs planner_worker (--worker): the worker with the trained adapter'
                )
            planner_names = (self.pool.require(settings.planner_worker),)
            pool = pool.without(planner_names)
        elif settings.planner_worker and self.pool.require(settings.planner_worker) not in pool:
            raise ConfigError(
                f'planner_worker "{settings.planner_worker}" is not among the workers that plans may use; '
                "add it to the profile's workers"
            )
        for name in (*pool.names, *planner_names):
            if name in self.problems:
                raise ConfigError(self.problems[name])
        return pool


class LearnedPolicy:
    """A policy, and the local workers in which its plans end."""

    def __init__(self, policy: FittedPolicy, pool: Pool, selector: Chooses | None) -> None:
        self.policy = policy
        names = {word: word if word not in pool else f"policy-{word}" for word in ("select", "vote")}
        self.counter = names["vote"]
        self.selector = names["select"]
        self.workers: list[Worker] = [Counting(same_free_answer, name=self.counter, kind="vote")]
        if selector is not None:  # a policy without a decision has no selector
            self.workers.append(Select(selector, name=self.selector))


def _changed(settings: Profile, changes: Mapping[str, Any], *, names: tuple[str, ...]) -> Profile:
    planner = changes.get("planner", settings.planner)
    if not can_plan(planner):
        raise ConfigError(f'no planner is called "{planner}"{nearest(planner, profile_planners())}')
    values = msgspec.structs.asdict(settings)
    if planner_named(settings.planner).planned_by == "trained worker" and planner != settings.planner:
        # The trained worker can only plan, so another planner does not get it as a worker.
        workers = tuple(name for name in settings.workers or names if name != settings.planner_worker)
        values |= {"planner_worker": "", "workers": workers}
    try:
        return Profile(**(values | dict(changes)))  # a new struct, because `replace` would skip its checks
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _planner(
    spec: PlannerSpec,
    settings: Profile,
    pool: Pool,
    *,
    everybody: Pool,
    right: Mapping[str, float],
    learned: LearnedPolicy | None,
) -> Planner:
    if settings.planner_worker and spec.planned_by != "trained worker":
        pool.require(settings.planner_worker)
    assert spec.make is not None  # `can_plan` was checked when the name was read
    unlike = None
    if settings.unlike:
        other = msgspec.structs.replace(settings, planner=settings.unlike, policy="", unlike="")
        unlike = _planner(planner_named(other.planner), other, pool, everybody=everybody, right=right, learned=None)
    return spec.make(
        Setup(
            pool=pool,
            everybody=everybody,
            worker=settings.planner_worker,
            dialect=settings.dialect,
            few_shots=settings.few_shots,
            show_names=settings.show_names,
            temperature=settings.temperature,
            max_output_tokens=settings.planner_output_tokens,
            right=right,
            policy=None if learned is None else learned.policy,
            selector="" if learned is None else learned.selector,
            counter="" if learned is None else learned.counter,
            operating_point=settings.operating_point,
            unlike=unlike,
            explore=settings.explore,
            prefer=settings.prefer,
        )
    )
