"""Calls about an account on the hosted service: audit log and billing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Literal, TypeVar

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.types.billing import (
    AuditLogResponse,
    BillingUsageResponse,
    CurrentCheckpointStorageUsageResponse,
)

T = TypeVar("T")
AuditEvents = Literal["all", "checkpoints", "projects", "teams", "organizations"]


@errors_in_futures
class AccountCalls:
    """Audit log and billing. Self-hosted servers have neither."""

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] = {}) -> Future[T]:
        """The answer to a request; the REST client makes it."""
        raise NotImplementedError

    def get_audit_log(
        self, event_type: AuditEvents = "all", day: date | None = None
    ) -> Future[AuditLogResponse]:
        """The audit log, of one day or of all.

        Args:
            event_type: Only events of this kind.
            day: Only those of this day.

        Example: `rest.get_audit_log(day=date(2026, 1, 31)).result()`.
        """
        params: dict[str, str] = {"event_type": event_type}
        if day is not None:
            params["day"] = day.isoformat()
        return self._get("/audit", AuditLogResponse, params)

    async def get_audit_log_async(
        self, event_type: AuditEvents = "all", day: date | None = None
    ) -> AuditLogResponse:
        """`get_audit_log`, awaited."""
        return await self.get_audit_log(event_type, day)

    def get_billing_usage(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> Future[BillingUsageResponse]:
        """What was used in a span of time: whole hours, at most 14 days.

        Args:
            starting_on: The first moment.
            ending_before: The moment after the last.

        Example: `rest.get_billing_usage("2026-01-01", "2026-01-08").result()`.
        """
        params = {"starting_on": _moment(starting_on), "ending_before": _moment(ending_before)}
        return self._get("/billing/usage/events", BillingUsageResponse, params)

    async def get_billing_usage_async(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> BillingUsageResponse:
        """`get_billing_usage`, awaited."""
        return await self.get_billing_usage(starting_on, ending_before)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> Future[CurrentCheckpointStorageUsageResponse]:
        """How much storage checkpoints take now.

        Args:
            project_id: Only that of this project.

        Example: `rest.get_current_checkpoint_storage_usage().result()`.
        """
        params = {} if project_id is None else {"project_id": project_id}
        return self._get(
            "/billing/usage/checkpoints/current", CurrentCheckpointStorageUsageResponse, params
        )

    async def get_current_checkpoint_storage_usage_async(
        self, project_id: str | None = None
    ) -> CurrentCheckpointStorageUsageResponse:
        """`get_current_checkpoint_storage_usage`, awaited."""
        return await self.get_current_checkpoint_storage_usage(project_id)


def _moment(value: datetime | str) -> str:
    return value.isoformat() if isinstance(value, datetime) else value
