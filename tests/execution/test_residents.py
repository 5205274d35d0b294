"""Residents: loaded once and before the first claim, lent to one run at a time, torn down at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock import ConfigurationError, JobContext, Rowlock, State, resident
from rowlock.execution.residents import ResidentFailed
from rowlock.testing import resident_replaced, run_all
from tests.eventually import eventually


class Model:
    """Something expensive."""

    loaded = 0

    def __init__(self) -> None:
        Model.loaded += 1
        self.uses = self.users = self.most_users = 0
        self._lock = threading.Lock()

    def use(self, together: threading.Barrier | None = None) -> int:
        with self._lock:
            self.uses += 1
            self.users += 1
            self.most_users = max(self.most_users, self.users)
        if together is not None:
            together.wait(30)
        with self._lock:
            self.users -= 1
        return self.uses


@pytest.fixture(autouse=True)
def none_loaded() -> None:
    Model.loaded = 0


def test_tasks_with_the_same_loader_share_one_object_per_worker(app: Rowlock) -> None:
    seen: list[Model] = []

    @app.task
    def one(a: int, model: Model = resident(Model)) -> int:
        seen.append(model)
        return a + model.use()

    @app.task
    def two(ctx: JobContext, *, model: Model = resident(Model), b: int = 7) -> int:
        seen.append(model)
        return b

    first, second = one.enqueue(10), two.enqueue(b=3)
    assert run_all(app, strategy="FIFO").completed == 2
    assert (app.result(first.id), app.result(second.id)) == (11, 3)
    assert (Model.loaded, len({id(model) for model in seen})) == (1, 1)


def test_it_is_loaded_before_anything_is_claimed_and_shown_with_its_time(app: Rowlock) -> None:
    states: list[State] = []

    def load() -> Model:
        states.append(app.job(1).state)
        return Model()

    @app.task
    def work(model: Model = resident(load)) -> None:
        eventually(lambda: app.store.workers()[0].info.get("residents"))

    job = work.enqueue()
    run_all(app)
    assert (states, app.job(job.id).state) == ([State.QUEUED], State.COMPLETED)
    (name, seconds), *_ = app.store.workers()[0].info["residents"].items()
    assert name.endswith("load") and seconds >= 0


def test_a_load_that_fails_stops_the_worker_with_the_reason_before_anything_is_claimed(app: Rowlock) -> None:
    torn_down: list[str] = []

    def fine() -> Iterator[str]:
        yield "fine"
        torn_down.append("fine")

    def load_model() -> Model:
        raise FileNotFoundError("weights.bin")

    @app.task
    def work(a: str = resident(fine), model: Model = resident(load_model)) -> None: ...

    job = work.enqueue()
    with pytest.raises(ResidentFailed, match=r"the resident model of task 'work' .*weights\.bin"):
        app.worker().run(until_empty=True)
    assert (app.job(job.id).state, app.job(job.id).claim) == (State.QUEUED, 0)
    assert torn_down == ["fine"]


def test_one_run_at_a_time_uses_it(app: Rowlock) -> None:
    model = Model()
    both_wait = threading.Event()

    @app.task
    def work(one: Model = resident(lambda: model)) -> None:
        one.use()
        both_wait.wait(0.02)

    work.enqueue_many([{}] * 8)
    assert app.worker(concurrency=4).run(until_empty=True).completed == 8
    assert (model.uses, model.most_users) == (8, 1)


def test_no_more_is_claimed_than_can_use_it(app: Rowlock) -> None:
    in_hand: list[int] = []

    @app.task
    def work(model: Model = resident(Model)) -> None:
        in_hand.append(app.stats()["running"])

    work.enqueue_many([{}] * 4)
    assert app.worker(concurrency=4, prefetch=0).run(until_empty=True).completed == 4
    assert in_hand == [1, 1, 1, 1]


def test_shared_it_is_used_by_several_runs_at_once(app: Rowlock) -> None:
    model, together = Model(), threading.Barrier(3)

    @app.task
    def work(one: Model = resident(lambda: model, shared=True)) -> None:
        one.use(together)

    work.enqueue_many([{}] * 3)
    assert app.worker(concurrency=3).run(until_empty=True).completed == 3
    assert model.most_users == 3


def test_an_exclusive_resident_serves_coroutines_one_at_a_time(app: Rowlock) -> None:
    import asyncio

    model = Model()

    @app.task
    async def work(one: Model = resident(lambda: model)) -> None:
        one.users += 1
        one.most_users = max(one.most_users, one.users)
        await asyncio.sleep(0.005)
        one.users -= 1

    work.enqueue_many([{}] * 5)
    assert app.worker(pool="async").run(until_empty=True).completed == 5
    assert model.most_users == 1


def test_a_test_can_put_something_cheap_in_its_place(app: Rowlock) -> None:
    def load_model() -> Model:
        raise AssertionError("never in a test")

    @app.task
    def work(model: Model = resident(load_model)) -> str:
        return str(model)

    job = work.enqueue()
    with resident_replaced(load_model, "cheap"):
        run_all(app)
    assert app.result(job.id) == "cheap"


def test_a_call_in_place_loads_it_once_and_takes_another_if_given(app: Rowlock) -> None:
    @app.task
    def work(a: int, model: Any = resident(Model)) -> Any:
        return model

    assert isinstance(work(1), Model)
    assert work(1) is work(2)
    assert work(1, model="mine") == "mine"
    assert Model.loaded == 1


def test_residents_are_not_arguments(app: Rowlock) -> None:
    @app.task
    def work(a: int, model: Any = resident(Model), b: int = 2) -> list[Any]:
        return [a, b, type(model).__name__]

    with pytest.raises(TypeError, match="model"):
        app.enqueue("work", {"a": 1, "model": "x"})
    job = work.enqueue(1, b=5)
    assert app.job(job.id).args == {"a": 1, "b": 5}
    run_all(app)
    assert app.result(job.id) == [1, 5, "Model"]


def test_a_resident_may_be_keyword_only(app: Rowlock) -> None:
    @app.task
    def use(a: int, b: int = 2, *, model: Any = resident(lambda: "model"), word: str) -> list[Any]:
        return [a, b, model, word]

    job = use.enqueue(1, word="x")
    run_all(app)
    assert app.result(job.id) == [1, 2, "model", "x"]


def test_what_cannot_be_a_resident_is_refused(app: Rowlock) -> None:
    with pytest.raises(ConfigurationError, match="must be given a function that loads the object"):
        resident(7)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="must not be positional-only"):

        @app.task
        def one(model: Any = resident(Model), /) -> None: ...

    with pytest.raises(ConfigurationError, match=r"residents and \*rest do not go together"):

        @app.task
        def two(model: Any = resident(Model), *rest: int) -> None: ...
