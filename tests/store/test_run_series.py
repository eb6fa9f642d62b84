"""How a run's series of metrics comes about: heads, points, thinning, chains; on both databases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine

from tests.store.postgres import each_database
from tests.store.work import OWNER, add_model, new_operation
from tinkex.client.chunking import reduce_metrics
from tinkex.store import (
    Database,
    checkpoints,
    logged_metrics,
    models,
    operation_outcomes,
    operations,
    run_chains,
    run_points,
    schema,
    usage_sums,
)
from tinkex.store.logged_metrics import LoggedCall, TooManyMetrics
from tinkex.store.operation_outcomes import OperationOutcome, SeriesChange
from tinkex.store.results import Result
from tinkex.store.run_points import MAX_POINTS, THIN_EVERY, Point
from tinkex.store.run_series import SPARK_POINTS, PointBody, SeriesHead, TrainedBatch

DONE = Result(encoding="json", body=b"{}")


db = each_database


def batch(loss: float, num_learned: int = 2, **metrics: float) -> TrainedBatch:
    return TrainedBatch(
        metrics={"loss:sum": loss, **{name.replace("_", ":"): v for name, v in metrics.items()}},
        num_tokens=3,
        num_learned=num_learned,
        num_examples=1,
    )


def call(step: int | None = None, call_id: str | None = None, **metrics: float) -> LoggedCall:
    return LoggedCall(metrics=metrics, step=step, after_seq=None, next_seq=None, call_id=call_id)


def point(step: int, **metrics: float | None) -> PointBody:
    return PointBody(step, float(step), 10 * step, dict(metrics))


def points_of(db: Database, model: str) -> list[Point]:
    return db.read(run_points.list_after, model, 0, limit=10 * MAX_POINTS)


NUMBERS = st.floats(-1e6, 1e6)
WRITERS = st.sampled_from(["trained", "logged"])


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries(dict.fromkeys(("l:sum", "m:mean", "a:max", "i:min"), NUMBERS)),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_batches_of_one_step_are_joined_as_the_client_joins_chunks(
    given_batches: list[tuple[dict[str, float], int]],
) -> None:
    head = SeriesHead()
    for metrics, num_examples in given_batches:
        head = head.trained(
            TrainedBatch(metrics=metrics, num_tokens=1, num_learned=1, num_examples=num_examples)
        )
    head = head.stepped({"grad_norm": 1.0}, 7.0)
    expected = reduce_metrics(
        [metrics for metrics, _ in given_batches], [count for _, count in given_batches]
    )
    assert head.latest is not None
    found = dict(head.latest.metrics)
    assert found.pop("grad_norm") == 1.0
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert (head.step, head.tokens) == (1, len(given_batches))


def test_a_step_divides_its_loss_by_the_targets_that_count() -> None:
    head = SeriesHead().trained(batch(6.0, 2)).trained(batch(2.0, 2)).stepped({}, 1.0)
    assert head.latest is not None
    assert head.latest.metrics["loss_per_token"] == 2.0
    nothing = head.trained(batch(0.0, 0)).stepped({}, 1.0).latest
    assert nothing is not None
    assert "loss_per_token" not in nothing.metrics
    assert head.trained(batch(9.0)).reset().since_step == SeriesHead().since_step


@given(st.integers(1, 700))
def test_the_line_of_losses_is_short_and_in_order(count: int) -> None:
    head = SeriesHead()
    for step in range(count):
        head = head.trained(batch(2.0 * step)).stepped({}, 0.0)
    assert len(head.spark) <= SPARK_POINTS
    assert head.spark == sorted(head.spark)
    assert head.spark[0] == 0.0
    assert len(head.spark) >= min(count, SPARK_POINTS // 2)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(["trained", "logged"]), min_size=1, max_size=12), st.integers(1, 400)
)
def test_a_series_never_has_too_many_points_and_keeps_the_newest(
    writers: list[str], per_turn: int
) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as conn:
        schema.metadata.create_all(conn)
        model = add_model(conn)
        counts, total = {"trained": 0, "logged": 0}, 0
        for turn, writer in enumerate(writers):
            for _ in range(per_turn):
                total += 1
                counts[writer] += 1
                run_points.add(conn, {model: point(total, **{writer: 1.0, f"once{turn}": 2.0})})
                if counts[writer] % THIN_EVERY == 0:
                    run_points.thin(conn, model)
            found = run_points.list_after(conn, model, 0, limit=10 * MAX_POINTS)
            assert len(found) <= MAX_POINTS
        numbers = [each.number for each in found]
        newest = list(range(max(1, total - 749), total + 1))
        assert numbers == sorted(set(numbers))
        assert numbers[-len(newest) :] == newest
        assert all(each.body.step == each.number for each in found), "the later of two stays"
        names = {name for each in found for name in each.body.metrics}
        assert names == {*writers, *(f"once{turn}" for turn in range(len(writers)))}


def test_points_of_many_runs_are_numbered_each_by_itself(db: Database) -> None:
    mine, other = db.write(add_model), db.write(add_model)
    for step in range(1, 4):
        db.write(run_points.add, {mine: point(step, a=1.0), other: point(step, b=2.0)})
    db.write(run_points.add, {mine: point(4, a=None)})
    assert [each.number for each in points_of(db, mine)] == [1, 2, 3, 4]
    assert [each.number for each in points_of(db, other)] == [1, 2, 3]
    assert points_of(db, mine)[3].body.metrics == {"a": None}
    assert db.read(run_points.last_number, mine) == 4
    assert db.read(run_points.last_number, "nobody") == 0


def test_results_points_and_usage_are_counted_once(db: Database) -> None:
    made = [db.write(add_model) for _ in range(3)]
    outcomes, changes = [], {}
    for model in made:
        new = new_operation(model, 1)
        operation = db.write(operations.append, new).operation
        head = SeriesHead().trained(batch(1.0)).stepped({"grad_norm": 2.0}, 5.0)
        changes[model] = SeriesChange(head=head, has_point=True, is_full=True)
        outcomes.append(
            OperationOutcome(
                operation=operation, result=DONE, num_tokens=4, num_steps=1, engine_s=0.5
            )
        )
    before = db.read(usage_sums.list_by, OWNER, "total", None, None)[0]
    for some in (outcomes[:1], outcomes, outcomes):  # a write whose answer was lost is repeated
        kept = {each.operation.model_id: changes[each.operation.model_id] for each in some}
        db.write(operation_outcomes.finish, some, kept)
    after = db.read(usage_sums.list_by, OWNER, "total", None, None)[0]
    assert after.tokens_trained - before.tokens_trained == 12
    assert after.engine_s - before.engine_s == pytest.approx(1.5)
    for model in made:
        assert len(points_of(db, model)) == 1
        assert db.read(models.series_head, model) == changes[model].head


def test_a_logged_call_is_kept_once_and_names_are_bounded(db: Database) -> None:
    model = db.write(add_model)
    for _ in range(2):
        assert db.write(logged_metrics.log, OWNER, model, call(3, "a", x=1.0)) == (3, 1)
    assert db.write(logged_metrics.log, OWNER, model, call(None, "b", x=2.0)) == (0, 2)
    assert db.write(logged_metrics.log, OWNER, model, call(None, None, x=3.0)) == (0, 3)
    assert db.write(logged_metrics.log, "bob", model, call(1, None, x=1.0)) is None
    many = {f"m{number}": 1.0 for number in range(256)}
    with pytest.raises(TooManyMetrics, match="257 different"):
        db.write(logged_metrics.log, OWNER, model, call(1, None, **many))
    assert len(points_of(db, model)) == 3


def test_logged_points_are_thinned_as_well(db: Database) -> None:
    model = db.write(add_model)

    def log_many(conn: Connection) -> None:
        for number in range(MAX_POINTS + 10):
            logged_metrics.log(conn, OWNER, model, call(number, None, x=float(number)))

    db.write(log_many)
    found = points_of(db, model)
    assert len(found) <= MAX_POINTS
    assert found[-1].number == MAX_POINTS + 10


def test_a_step_to_come_counts_for_what_is_logged_after_it(db: Database) -> None:
    model = db.write(add_model)
    for seq_id in (1, 2, 3):
        db.write(operations.append, new_operation(model, seq_id))
    db.write(operations.append, new_operation(model, 4, kind="forward_backward"))
    for after_seq, step in ((0, 0), (1, 1), (3, 3), (4, 3), (9, 3)):
        logged = LoggedCall(
            metrics={"x": 1.0}, step=None, after_seq=after_seq, next_seq=1, call_id=None
        )
        found = db.write(logged_metrics.log, OWNER, model, logged)
        assert found is not None
        assert found[0] == step


def test_a_chain_goes_on_at_the_checkpoint(db: Database) -> None:
    first = db.write(add_model)
    for step in (1, 2, 3):
        db.write(run_points.add, {first: point(step, a=float(step))})
    resumed = models.Resumed(
        resumed_from=first,
        root_id=first,
        first_point=2,
        series=SeriesHead(step=2, tokens=20),
        name="one",
        tags={"k": "v"},
    )
    second = db.write(add_model)
    db.write(models.resume, second, resumed)
    db.write(run_points.add, {second: point(3, a=30.0)})
    model = db.read(models.get, OWNER, second)
    assert model is not None
    assert (model.name, model.tags, model.root) == ("one", {"k": "v"}, first)

    def page(after: int, limit: int, *, with_chain: bool = True) -> list[tuple[int, float | None]]:
        found = db.read(run_chains.page_of_points, model, after, limit=limit, with_chain=with_chain)
        assert found.has_more == (len(found.points) == limit and limit < 3)
        assert not found.is_thinned
        return [(each.number, each.body.metrics["a"]) for each in found.points]

    assert page(0, 10) == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert page(0, 2) == [(1, 1.0), (2, 2.0)]
    assert page(2, 10) == [(3, 30.0)]
    assert page(0, 10, with_chain=False) == [(3, 30.0)]
    assert db.write(models.rename, OWNER, second, {"name": "two", "tags": {}})
    assert not db.write(models.rename, "bob", second, {"name": "no"})
    names = [each.name for each in db.read(models.list_runs, OWNER, limit=9, offset=0)[0]]
    assert names.count("two") == 2


def test_a_chain_whose_beginning_is_gone_is_what_is_left(db: Database) -> None:
    second = db.write(add_model)
    gone = models.Resumed(
        resumed_from="gone", root_id=None, first_point=9, series=SeriesHead(), name=None, tags={}
    )
    db.write(models.resume, second, gone)
    db.write(run_points.add, {second: point(1, a=1.0)})
    model = db.read(models.get, OWNER, second)
    assert model is not None
    found = db.read(run_chains.page_of_points, model, 0, limit=5, with_chain=True)
    assert [each.number for each in found.points] == [10]
    assert not found.is_thinned


def test_points_are_squeezed_without_losing_a_metric() -> None:
    points = [Point(n, point(n, **{f"m{n % 3}": float(n)})) for n in range(1, 11)]
    assert run_chains.squeezed(points, 10) == points
    found = run_chains.squeezed(points, 3)
    assert [each.number for each in found] == [3, 6, 10]
    assert all(set(each.body.metrics) == {"m0", "m1", "m2"} for each in found)


def test_a_saved_checkpoint_knows_how_far_its_run_was(db: Database) -> None:
    model = db.write(add_model)
    head = SeriesHead(step=4, tokens=44)
    db.write(models.add_usage, {model: models.Used(series=operation_outcomes.encode_head(head))})
    db.write(run_points.add, {model: point(4, a=1.0)})
    saved = checkpoints.Checkpoint(
        checkpoint_id=model[:32],
        owner=OWNER,
        model_id=model,
        kind="weights",
        name="one",
        base_model="null",
        engine_model="null",
        spec="{}",
        optimizer_config={},
        user_metadata=None,
        size_bytes=1,
        created_at=0.0,
    )
    db.write(checkpoints.put_new, saved)
    found = db.read(checkpoints.find, OWNER, model, "weights", "one")
    assert found is not None
    resumed = db.read(checkpoints.resumed, OWNER, found)
    assert (resumed.first_point, resumed.series) == (1, head)
    assert db.read(checkpoints.resumed, "bob", found).root_id is None
