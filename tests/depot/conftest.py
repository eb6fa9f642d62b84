"""Every test of this folder has a real object store."""

from __future__ import annotations

from tests.support.azurite import azurite, container
from tests.support.object_stores import bucket, object_store

__all__ = ["azurite", "bucket", "container", "object_store"]
