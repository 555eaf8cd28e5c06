"""Moments as text: UTC, ISO 8601, always 27 characters, so that they sort by time on both databases."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_text(moment: datetime) -> str:
    """A time without a zone is taken as UTC."""
    if moment.tzinfo is not None and moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    # Every request writes several; strftime takes five times as long.
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def now() -> datetime:
    return datetime.now(UTC)
