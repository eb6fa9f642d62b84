"""Responses for an account's administrators: audit log and billing."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

from tinkex.types._model import AnswerModel


class AuditLogEntry(AnswerModel, frozen=True, kw_only=True):
    """One event of the audit log."""

    timestamp: datetime
    event: str
    event_details: dict[str, Any] = {}
    model_id: str | None = None
    tinker_path: str | None = None
    purpose: str | None = None


class AuditLogResponse(AnswerModel, frozen=True, kw_only=True):
    """The audit log of one day."""

    entries: list[AuditLogEntry]


class TrainingBillingEvent(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="training"
):
    """Tokens trained on."""

    type: ClassVar[Literal["training"]] = "training"
    token_count: int


class SamplingPrefillBillingEvent(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="sampling_prefill"
):
    """Prompt tokens read."""

    type: ClassVar[Literal["sampling_prefill"]] = "sampling_prefill"
    cached: bool
    token_count: int


class SamplingSampleBillingEvent(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="sampling_sample"
):
    """Tokens sampled."""

    type: ClassVar[Literal["sampling_sample"]] = "sampling_sample"
    token_count: int


class CheckpointBillingEvent(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="checkpoint"
):
    """Checkpoints written."""

    type: ClassVar[Literal["checkpoint"]] = "checkpoint"
    count: int


class StorageBillingEvent(AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="storage"):
    """Checkpoints kept."""

    type: ClassVar[Literal["storage"]] = "storage"
    gigabyte_hours: float


BillingEventInfo = (
    TrainingBillingEvent
    | SamplingPrefillBillingEvent
    | SamplingSampleBillingEvent
    | CheckpointBillingEvent
    | StorageBillingEvent
)


class BillingUsageEvent(AnswerModel, frozen=True, kw_only=True):
    """Usage of one kind within one hour."""

    bucket_start: datetime
    bucket_end: datetime
    base_model: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    estimated_cost_usd: float | None = None
    effective_rate_usd_per_million_tokens: float | None = None
    effective_rate_usd_per_gigabyte_month: float | None = None
    event_info: BillingEventInfo


class BillingUsageSession(AnswerModel, frozen=True, kw_only=True):
    """A session that appears in the bill."""

    user_metadata: dict[str, str] | None = None


class BillingUsageResponse(AnswerModel, frozen=True, kw_only=True):
    """The bill of a period."""

    data: list[BillingUsageEvent]
    sessions: dict[str, BillingUsageSession] = {}
    cost_data_through: datetime | None = None


class CurrentCheckpointStorageUsageItem(AnswerModel, frozen=True, kw_only=True):
    """The checkpoints that one user keeps in one project."""

    project_id: str | None = None
    org_user_urn: str | None = None
    user_email: str | None = None
    user_name: str | None = None
    checkpoint_count: int
    size_bytes: int
    size_gigabytes: float
    estimated_monthly_cost_usd: float | None = None


class CurrentCheckpointStorageUsageResponse(AnswerModel, frozen=True, kw_only=True):
    """The checkpoints kept at this moment."""

    effective_rate_usd_per_gigabyte_month: float | None = None
    data: list[CurrentCheckpointStorageUsageItem]
