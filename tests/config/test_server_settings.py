"""`[serve]` of the configuration: defaults that run, values that are checked, misspelt keys that are named."""

from __future__ import annotations

import pytest
from tests.facts import says

from dirigent.config.file import parse_config
from dirigent.config.server_settings import ServeSettings
from dirigent.errors import ConfigError


def test_defaults_run_and_every_key_can_be_said() -> None:
    assert parse_config("").config.serve == ServeSettings()
    said = """
    [serve]
    host = "0.0.0.0"
    port = 9000
    max_in_flight = 10
    hold_status_s = 1
    keep_alive_s = 2
    header_timeout_s = 2.5
    max_header_bytes = 8192
    idle_timeout_s = 6
    failed_tries_per_minute = 7
    body_timeout_s = 3
    send_timeout_s = 4
    grace_s = 5
    keys_required = true
    retention_days = 30
    otel = true
    """
    assert parse_config(said).config.serve == ServeSettings(
        host="0.0.0.0",
        port=9000,
        max_in_flight=10,
        hold_status_s=1.0,
        keep_alive_s=2.0,
        header_timeout_s=2.5,
        max_header_bytes=8192,
        idle_timeout_s=6.0,
        failed_tries_per_minute=7,
        body_timeout_s=3.0,
        send_timeout_s=4.0,
        grace_s=5.0,
        keys_required=True,
        retention_days=30,
        otel=True,
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prot = 80", "prot [serve] port"),
        ("port = 70000", "port 0 65535 70000"),
        ('port = "80"', "port 80"),
        ('host = ""', "host"),
        ("max_in_flight = 0", "max_in_flight 1 0"),
        ("retention_days = 0", "retention_days 1 0"),
        ("failed_tries_per_minute = 0", "failed_tries_per_minute 1 0"),
        ("max_header_bytes = 100", "max_header_bytes 1024 100"),
        ("grace_s = 0", "grace_s 0"),
        ("header_timeout_s = 0", "header_timeout_s 0"),
        ("keep_alive_s = -1", "keep_alive_s 0"),
    ],
)
def test_a_wrong_value_is_said_with_its_line(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"[serve]\n{line}\n")
    assert says(str(caught.value), f"{said} 2")
