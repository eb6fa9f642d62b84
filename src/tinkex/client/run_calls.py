"""What a Tinkex server remembers of runs: metrics, names and tags, and an account's usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Literal, TypeVar

import msgspec

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.types.checkpoint import TrainingRun
from tinkex.types.requests import UpdateRunRequest
from tinkex.types.runs import RunMetricsResponse, UsageResponse
from tinkex.types.training import ModelID

__all__ = ["RunCalls", "UsageGrouping"]

T = TypeVar("T")
UsageGrouping = Literal["day", "key", "run", "total"]


@errors_in_futures
class RunCalls:
    """Metrics, names and usage. Only Tinkex servers have these routes."""

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] = {}) -> Future[T]:
        """The answer to a request; the REST client makes it."""
        raise NotImplementedError

    def _patch(self, path: str, request: msgspec.Struct, type_: type[T]) -> Future[T]:
        """The answer to a change; the REST client makes it."""
        raise NotImplementedError

    def get_run_metrics(
        self,
        training_run_id: ModelID,
        names: Sequence[str] | None = None,
        *,
        after: int = 0,
        max_points: int | None = None,
        with_chain: bool = True,
    ) -> Future[RunMetricsResponse]:
        """A page of a run's metrics: the points after a cursor, those of the runs it was resumed
        from first. With `max_points` all of them in one page, joined to so many.

        Args:
            training_run_id: The run, as `TrainingClient.model_id` names it.
            names: Only these metrics; None for all.
            after: The cursor of the page before.
            max_points: Joins the points to so many, all in one page.
            with_chain: Whether those of the runs it was resumed from come first.

        Example: `rest.get_run_metrics(run_id, names=["loss:sum"]).result().columns`.
        """
        params = {"after": str(after), "chain": "1" if with_chain else "0"}
        if names is not None:
            params["names"] = ",".join(names)
        if max_points is not None:
            params["max_points"] = str(max_points)
        return self._get(f"/training_runs/{training_run_id}/metrics", RunMetricsResponse, params)

    async def get_run_metrics_async(
        self,
        training_run_id: ModelID,
        names: Sequence[str] | None = None,
        *,
        after: int = 0,
        max_points: int | None = None,
        with_chain: bool = True,
    ) -> RunMetricsResponse:
        """`get_run_metrics`, awaited."""
        return await self.get_run_metrics(
            training_run_id, names, after=after, max_points=max_points, with_chain=with_chain
        )

    def update_run(
        self,
        training_run_id: ModelID,
        *,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Future[TrainingRun]:
        """Names or tags a run and the others of its chain; what is None stays, an empty name goes.

        `tags` replace those that were there.

        Args:
            training_run_id: The run, as `TrainingClient.model_id` names it.
            name: The new name; empty takes it away, None leaves it.
            tags: The new tags, in place of those that were there; None leaves them.

        Example: `rest.update_run(run_id, name="baseline", tags={"lr": "1e-4"}).result()`.
        """
        request = UpdateRunRequest(name=name, tags=None if tags is None else dict(tags))
        return self._patch(f"/training_runs/{training_run_id}", request, TrainingRun)

    async def update_run_async(
        self,
        training_run_id: ModelID,
        *,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TrainingRun:
        """`update_run`, awaited."""
        return await self.update_run(training_run_id, name=name, tags=tags)

    def get_usage(
        self,
        by: UsageGrouping = "day",
        first: date | None = None,
        last: date | None = None,
        *,
        run: ModelID | None = None,
    ) -> Future[UsageResponse]:
        """What the account, or one run of it, used, by day, key or run, from one day to another,
        both included.

        Args:
            by: `day`, `key`, `run` or `total`.
            first: The first day; None for the first there is.
            last: The last day; None for today.
            run: A run's id; None for all of the account.

        Example: `rest.get_usage(by="run").result()`.
        """
        params: dict[str, str] = {"by": by}
        if run is not None:
            params["run"] = run
        if first is not None:
            params["from"] = first.isoformat()
        if last is not None:
            params["to"] = last.isoformat()
        return self._get("/usage", UsageResponse, params)

    async def get_usage_async(
        self,
        by: UsageGrouping = "day",
        first: date | None = None,
        last: date | None = None,
        *,
        run: ModelID | None = None,
    ) -> UsageResponse:
        """`get_usage`, awaited."""
        return await self.get_usage(by, first, last, run=run)
