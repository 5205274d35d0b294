"""Tasks and the ways to enqueue them: binding, options, names, what bad input gets."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import re
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from rowlock import ConfigurationError, InvalidPayload, JobContext, Retry, Rowlock, UnknownTask

UTC = timezone.utc


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Box:
    width: int
    label: str = ""


class Point(msgspec.Struct):
    x: float


class Model(BaseModel):
    name: str
    box: dict[str, int] = {}


def run(app: Rowlock) -> None:
    app.worker(concurrency=1).run(until_empty=True)


# -- registering -------------------------------------------------------------------------------------


def test_a_bare_decorator_names_the_task_after_the_function(app: Rowlock) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    assert (add.name, add.__name__, add.__doc__, add(1, b=2)) == ("add", "add", "Adds.", 3)
    assert dict(app.tasks) == {"add": add}


def test_options_become_the_jobs_fields(app: Rowlock) -> None:
    @app.task(name="cut", queue="gpu", priority=5, expires=3600, retry=Retry(max_attempts=7))
    def segment(image: int) -> None: ...

    job = segment.enqueue(1)
    assert (job.task, job.queue, job.priority, job.max_attempts) == ("cut", "gpu", 5, 7)
    assert job.expires_at == job.run_at + timedelta(hours=1)
    assert app.job(job.id) == job


def test_retry_false_means_at_most_once(app: Rowlock) -> None:
    @app.task(retry=False)
    def charge() -> None: ...

    assert charge.enqueue().max_attempts == 1


def test_two_different_tasks_of_one_name_are_refused(app: Rowlock) -> None:
    def make(value: int) -> Callable[[], int]:
        if value == 1:

            def task() -> int:
                return 1
        else:

            def task() -> int:
                return 2

        return task

    app.task(name="same")(make(1))
    app.task(name="same")(make(1))  # a module that is imported again
    with pytest.raises(ConfigurationError, match="two different tasks want the name 'same'"):
        app.task(name="same")(make(2))
    with pytest.raises(ConfigurationError, match="want the name 'same'"):
        app.task(name="other", aliases=["same"])(make(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 101}, "priority=101: must be a whole number from -100 to 100"),
        ({"priority": True}, "priority=True"),
        ({"queue": ""}, "queue=''"),
        ({"queue": "a\nb"}, "printable"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": -1}, "timeout=-1"),
        ({"retry": 3}, "retry=3: must be Retry"),
        ({"unique": "sometimes"}, "unique='sometimes'"),
        ({"aliases": "old"}, "aliases='old'"),
        (
            {"colour": "red"},
            "unknown option 'colour'; there are: aliases, delay, expires, meta, name, pool, priority, queue",
        ),
    ],
)
def test_a_bad_option_is_refused_by_its_name(app: Rowlock, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        app.task(**options)(lambda: None)


def test_what_is_no_function_is_no_task(app: Rowlock) -> None:
    def generator() -> Any:
        yield 1

    async def stream() -> Any:
        yield 1

    for thing in (generator, stream, Colour, "text"):
        with pytest.raises(ConfigurationError, match="must"):
            app.task(thing)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"max_attempts": 1.5}, {"backoff": "none"}, {"base": -1}, {"cap": float("inf")}],
)
def test_a_retry_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Retry"):
        Retry(**options)


# -- enqueuing ---------------------------------------------------------------------------------------


def test_positional_and_keyword_arguments_are_bound(app: Rowlock) -> None:
    @app.task
    def add(a: int, b: int = 5, *rest: int, c: int = 7, **more: int) -> list[Any]:
        return [a, b, rest, c, more]

    calls = [
        (add.enqueue(1), [1, 5, [], 7, {}]),
        (add.enqueue(1, 2, 3, 4, c=0, d=9), [1, 2, [3, 4], 0, {"d": 9}]),
        (add.enqueue(b=2, a=1), [1, 2, [], 7, {}]),
        (app.enqueue("add", {"a": 1, "rest": [3], "z": 1, "b": 2}), [1, 2, [3], 7, {"z": 1}]),
    ]
    run(app)
    for job, expected in calls:
        assert app.result(job.id) == expected


def test_positional_only_parameters_work(app: Rowlock) -> None:
    @app.task
    def take(a: int, /, b: int) -> list[int]:
        return [a, b]

    job = take.enqueue(1, b=2)
    by_name = app.enqueue("take", {"a": 3, "b": 4})
    run(app)
    assert (app.result(job.id), app.result(by_name.id)) == ([1, 2], [3, 4])


def test_the_context_is_not_an_argument(app: Rowlock) -> None:
    @app.task
    def named(ctx: Any, a: int) -> list[int]:
        return [ctx.id, a]

    @app.task
    def annotated(context: JobContext, a: int) -> list[int]:
        context.progress(1, 2)
        context.log("hello")
        context.check_cancelled()
        return [context.id, a]

    one, two = named.enqueue(5), annotated.enqueue(a=6)
    run(app)
    assert (app.result(one.id), app.result(two.id)) == ([one.id, 5], [two.id, 6])
    assert annotated(7) == [0, 7]  # called as any function: a context that keeps nothing


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "add: missing a required argument: 'a'"),
        ((1,), {}, "add: missing a required argument: 'b'"),
        ((1, 2, 3), {}, "add: too many positional arguments"),
        ((1, 2), {"c": 3}, "add: got an unexpected keyword argument 'c'"),
        ((1, 2), {"b": 3}, "add: multiple values for argument 'b'"),
        (("one", 2), {}, "add: argument 'a': Expected `int`, got `str`"),
        ((1, None), {}, "add: argument 'b': Expected `int`, got `null`"),
    ],
)
def test_wrong_arguments_are_refused_when_enqueued(
    app: Rowlock, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(TypeError, match=message):
        add.enqueue(*args, **kwargs)
    assert app.jobs() == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"a": 1}, "missing a required argument: 'b'"),
        ({"a": 1, "b": 2, "c": 3}, "unexpected argument 'c'; it takes: a, b"),
        ({"a": 1, "b": "x"}, "argument 'b': Expected `int`"),
        ([1, 2], "must be a mapping"),
    ],
)
def test_wrong_arguments_by_name_are_refused_too(app: Rowlock, args: Any, message: str) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(TypeError, match=message):
        app.enqueue("add", args)
    with pytest.raises(TypeError, match=message if isinstance(args, dict) else "missing|mapping|too many"):
        add.enqueue_many([{"a": 1, "b": 2}, args if isinstance(args, dict) else "ab"])
    assert app.jobs() == []


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"arguments\['value'\] is nan"),
        ({"deep": [1, float("inf")]}, r"\['value'\]\['deep'\]\[1\] is inf"),
        (Point(float("nan")), r"\['x'\] is nan"),
        ("a\x00b", "NUL"),
        ({"a\x00": 1}, "key with a NUL"),
        ("\ud800", "lone surrogate"),
        (b"bytes", "is bytes"),
        (bytearray(b"x"), "is bytearray"),
        (circular(), "circular"),
        (object(), "object is not a JSON type"),
        (2**64, "64 bits"),
        ({1: "a", "1": "b"}, "one key in JSON"),
        ("x" * 2_000_000, "the limit is 1,048,576"),
    ],
)
def test_what_json_cannot_hold_is_refused(app: Rowlock, value: Any, message: str) -> None:
    @app.task
    def take(value: Any) -> None: ...

    with pytest.raises(InvalidPayload, match=message):
        take.enqueue(value)
    assert app.jobs() == []


def test_the_payload_limit_can_be_set(tmp_path: Any) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db", max_payload_bytes=2000)
    take = app.task(lambda value: None)
    take.enqueue("x" * 1900)
    with pytest.raises(InvalidPayload, match="the limit is 2,000"):
        take.enqueue("x" * 2000)
    app.close()


def test_arguments_arrive_as_their_annotated_types(app: Rowlock) -> None:
    seen: list[Any] = []

    @app.task
    def take(
        when: datetime,
        key: uuid.UUID,
        colour: Colour,
        box: Box,
        points: list[Point],
        model: Model,
        maybe: int | None,
    ) -> None:
        seen.extend([when, key, colour, box, points, model, maybe])

    given = [
        datetime(2026, 3, 1, 12, tzinfo=UTC),
        uuid.uuid4(),
        Colour.RED,
        Box(3, "x"),
        [Point(1.5)],
        Model(name="m", box={"a": 1}),
        None,
    ]
    take.enqueue(*given)
    run(app)
    assert seen == given


def test_arguments_that_no_longer_fit_burn_no_attempts(app: Rowlock) -> None:
    producer = Rowlock(app.store.url)
    job = producer.enqueue("take", {"when": "yesterday"})
    missing = producer.enqueue("take", {"gone": 1})
    unknown = producer.enqueue("take", {"when": "2026-03-01T12:00:00Z", "gone": 1})

    @app.task
    def take(when: datetime) -> None: ...

    run(app)
    for enqueued, word in (
        (job, "'when'"),
        (missing, "missing a required argument: 'when'"),
        (unknown, "unexpected argument 'gone'; it takes: when"),
    ):
        found = app.job(enqueued.id)
        assert (found.state, found.error_kind, found.failures) == ("failed", "arguments", 0)
        assert re.search(word, str(found.error))
    producer.close()


def test_extra_arguments_are_checked_and_arrive_as_their_annotated_type(app: Rowlock) -> None:
    @app.task
    def take(**times: datetime) -> list[Any]:
        return [list(times), [type(one).__name__ for one in times.values()]]

    job = take.enqueue(z=datetime(2026, 3, 1, tzinfo=UTC), a="2026-03-01T12:00:00Z")
    run(app)
    assert app.result(job) == [["z", "a"], ["datetime", "datetime"]]
    with pytest.raises(TypeError, match="take: Invalid RFC3339"):
        take.enqueue(z="yesterday")


def test_annotations_that_only_a_type_checker_sees_are_taken_as_they_are(app: Rowlock) -> None:
    @app.task
    def take(a: NotImported, b: int) -> list[Any]:  # type: ignore[name-defined]  # noqa: F821
        return [a, b]

    job = take.enqueue({"x": 1}, 2)
    run(app)
    assert app.result(job.id) == [{"x": 1}, 2]
    with pytest.raises(TypeError, match="argument 'b'"):  # the others are checked all the same
        take.enqueue({"x": 1}, "two")


def test_a_result_that_json_cannot_hold_fails_without_retry(app: Rowlock) -> None:
    @app.task
    def bad() -> Any:
        return {"value": b"bytes"}

    job = bad.enqueue()
    run(app)
    found = app.job(job.id)
    assert (found.state, found.error_kind, found.failures) == ("failed", "result", 0)
    assert "the result of bad['value'] is bytes" in str(found.error)


def test_async_tasks_run_and_results_may_be_models(app: Rowlock) -> None:
    @app.task
    async def fetch(n: int) -> Box:
        await asyncio.sleep(0)
        return Box(n)

    @app.task
    def model() -> Model:
        return Model(name="x")

    one, two = fetch.enqueue(4), model.enqueue()
    run(app)
    assert app.result(one.id) == {"width": 4, "label": ""}
    assert app.result(two.id) == {"name": "x", "box": {}}


# -- many, configured, by name, async ----------------------------------------------------------------


def test_enqueue_many_takes_mappings_and_sequences(app: Rowlock) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    ids = add.enqueue_many([{"a": 1, "b": 2}, (3, 4), [5, 6]])
    run(app)
    assert [app.result(id) for id in ids] == [3, 7, 11]
    assert add.enqueue_many([]) == []


def test_enqueue_many_checks_every_call_before_it_writes_one(app: Rowlock) -> None:
    @app.task
    def add(a: int) -> int:
        return a

    with pytest.raises(TypeError, match=r"'a'.*call 6000 of the list; nothing was enqueued"):
        add.enqueue_many([{"a": number} for number in range(6000)] + [{"a": "x"}])
    assert app.jobs() == []


def test_a_long_list_is_written_in_order(app: Rowlock) -> None:
    @app.task
    def add(a: int) -> int:
        return a

    ids = add.enqueue_many({"a": number} for number in range(11_000))
    assert ids == list(range(ids[0], ids[0] + 11_000))
    assert app.job(ids[10_500]).args == {"a": 10_500}


def test_configure_changes_one_enqueue_and_not_the_task(app: Rowlock) -> None:
    @app.task(queue="slow")
    def add(a: int, b: int) -> int:
        return a + b

    when = datetime.now(UTC) + timedelta(hours=1)
    meta = {"tenant": "x", "trace": [1]}
    job = add.configure(priority=9, run_at=when, queue="fast", unique_key="k", meta=meta).enqueue(1, 2)
    assert (job.priority, job.queue, job.unique_key, job.state, job.meta) == (
        9,
        "fast",
        "k",
        "scheduled",
        meta,
    )
    assert abs(job.run_at - when) < timedelta(milliseconds=1)
    assert app.job(job.id) == job
    plain = add.enqueue(1, 2)
    assert (plain.priority, plain.queue, plain.unique_key, plain.meta) == (0, "slow", None, {})
    sooner = add.configure(run_at=when).configure(delay=5).enqueue(1, 2)
    assert sooner.run_at < when  # what was configured last counts
    later = add.configure(delay=timedelta(minutes=1)).configure(priority=1).enqueue(1, 2)
    assert later.state == "scheduled" and later.run_at - later.created_at == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": 5, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "either delay= or run_at="),
        ({"run_at": datetime(2030, 1, 1)}, "has no timezone"),  # noqa: DTZ001
        ({"run_at": 5}, "must be a datetime"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "100 years"),
        ({"delay": -1}, "delay=-1"),
        ({"delay": float("nan")}, "delay=nan"),
        ({"delay": 1e12}, "100 years"),
        ({"expires": float("inf")}, "expires=inf"),
        ({"unique_key": ""}, "unique_key=''"),
        ({"meta": {"x": b"y"}}, "meta"),
        ({"priority": -101}, "priority=-101"),
    ],
)
def test_a_bad_configuration_is_refused(app: Rowlock, options: dict[str, Any], message: str) -> None:
    @app.task
    def add() -> None: ...

    with pytest.raises((ConfigurationError, InvalidPayload), match=message):
        add.configure(**options)


def test_a_second_enqueue_with_a_unique_key_returns_the_first(app: Rowlock) -> None:
    @app.task
    def add(a: int) -> int:
        return a

    first = add.configure(unique_key="k").enqueue(1)
    second = add.configure(unique_key="k").enqueue(2)
    assert first.is_new and not second.is_new
    assert second.id == first.id and second.args == {"a": 1}
    run(app)
    assert add.configure(unique_key="k").enqueue(3).is_new


def test_a_unique_key_until_queued_lets_the_next_in_while_one_runs(app: Rowlock) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.task(unique="queued")
    def refresh() -> None:
        entered.set()
        leave.wait(30)

    keyed = refresh.configure(unique_key="k")
    with app.worker(concurrency=1).background():
        keyed.enqueue()
        assert entered.wait(30)
        assert keyed.enqueue().is_new
        assert not keyed.enqueue().is_new
        leave.set()


def test_a_producer_without_the_code_enqueues_by_name(app: Rowlock) -> None:
    producer = Rowlock(app.store.url)
    job = producer.enqueue("add", {"a": 1, "b": 2}, queue="q", priority=3)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    assert (job.queue, job.priority, job.max_attempts) == ("q", 3, None)
    run(app)
    assert producer.result(job.id) == 3
    producer.close()


def test_an_unknown_name_is_refused_where_tasks_are_known(app: Rowlock) -> None:
    app.task(name="resize")(lambda: None)
    with pytest.raises(UnknownTask, match="no task 'resise'; did you mean 'resize'"):
        app.enqueue("resise")
    with pytest.raises(UnknownTask, match="known ones are: resize"):
        app.enqueue("zzz")
    other = Rowlock(app.store.url)
    other.task(name="elsewhere")(lambda: None)
    with other.worker().background():
        pass
    assert app.enqueue("elsewhere").task == "elsewhere"  # a worker has said that it knows it
    other.close()


def test_a_renamed_task_still_runs_jobs_under_its_old_name(app: Rowlock) -> None:
    producer = Rowlock(app.store.url)
    job = producer.enqueue("old_name", {"a": 1})

    @app.task(aliases=["old_name"])
    def new_name(a: int) -> int:
        return a + 1

    run(app)
    assert app.result(job.id) == 2
    assert app.enqueue("old_name", {"a": 2}).task == "new_name"
    producer.close()


def test_async_callers_have_the_same_calls(app: Rowlock) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    async def story() -> list[Any]:
        job = await add.aenqueue(1, b=2)
        by_name = await app.aenqueue("add", {"a": 3, "b": 4}, queue="q")
        ids = await add.aenqueue_many([(5, 6)])
        with app.worker().background():
            results = [await app.aresult(id, timeout=30) for id in (job.id, by_name.id, *ids)]
        assert (await app.ajob(job.id)).state == "completed"
        return results

    assert asyncio.run(story()) == [3, 7, 11]


def passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_decorated_functions_keep_their_types_and_are_told_apart(app: Rowlock) -> None:
    seen: list[Any] = []

    @app.task(name="one")
    @passing_on
    def take(box: Box) -> None:
        seen.append(box)

    take.enqueue(Box(3))
    run(app)
    assert seen == [Box(3)]
    with pytest.raises(ConfigurationError, match="two different tasks want the name 'one'"):

        @app.task(name="one")
        @passing_on
        def other() -> None: ...


def test_never_takes_exception_classes_only() -> None:
    for never in ([ValueError], (ValueError, "x"), ValueError):
        with pytest.raises(ConfigurationError, match="tuple of exception classes"):
            Retry(never=never)  # type: ignore[arg-type]


def test_odd_parameter_names_work(app: Rowlock) -> None:
    @app.task
    def odd(self: int, __y: int, ctx: int = 3) -> list[int]:
        return [self, __y, ctx]

    job = app.enqueue("odd", {"self": 1, "__y": 2})
    other = odd.enqueue(self=1, __y=2)
    run(app)
    assert app.result(job.id) == app.result(other.id) == [1, 2, 3]


def test_a_type_that_json_cannot_tell_apart_is_refused_by_its_name(app: Rowlock) -> None:
    @app.task
    def take(a: int, b: Box | Point) -> None: ...

    with pytest.raises(ConfigurationError, match="task 'take': the type of its parameter 'b'"):
        take.enqueue(1, Box(2))


def test_a_task_may_say_how_all_of_its_jobs_are_enqueued(app: Rowlock) -> None:
    @app.task(delay=30, meta={"tenant": "a"}, unique_key="one")
    def tidy() -> None: ...

    first, second = tidy.enqueue(), tidy.enqueue()
    assert (first.state, first.meta, second.id) == ("scheduled", {"tenant": "a"}, first.id)
