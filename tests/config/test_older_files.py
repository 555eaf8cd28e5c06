"""A dirigent.toml of an earlier version is still read: no key has been removed."""

from __future__ import annotations

import msgspec
import pytest

from dirigent.config.file import Config, Profile, StoreConfig, parse_config
from dirigent.config.server_settings import Guardrails, Override, ServeSettings
from dirigent.config.worker_config import Abilities, WorkerConfig
from dirigent.workers.http import Timeouts
from dirigent.workers.worker import Price

KEYS: dict[type[msgspec.Struct], str] = {
    Config: "worker profile default_profile store serve guardrails override",
    WorkerConfig: (
        "name kind preset model base_url api_key_env about region price context_tokens max_output_tokens timeout "
        "retries breaker_rest_s requests_per_minute concurrency cache effort temperature sampling system extra "
        "abilities subtask_only skills weights adapter merged path replies"
    ),
    Price: "input output cached_input cache_write_input",
    Timeouts: "connect_s first_byte_s chunk_s total_s",
    Abilities: "images tools schema json_mode grammar effort seed stop",
    Profile: (
        "max_steps max_rounds deadline_s step_deadline_s max_cost_usd max_step_cost_usd max_output_tokens "
        "max_run_output_tokens max_tool_rounds planner planner_worker workers dialect few_shots show_names temperature "
        "planner_output_tokens repairs reassign fallback version"
    ),
    StoreConfig: "url url_env",
    ServeSettings: (
        "host port max_in_flight hold_status_s keep_alive_s header_timeout_s max_header_bytes body_timeout_s "
        "send_timeout_s idle_timeout_s failed_tries_per_minute grace_s keys_required retention_days otel"
    ),
    Guardrails: "max_request_chars max_reply_chars block home_region redact redact_hook check_empty check_refusal",
    Override: "name key model kind matches pin deny planner profile",
}
"""Every key of the configuration before the product and the gym became two distributions."""

FILE = """
default_profile = "ultra"

[[worker]]
name = "gpt"
kind = "openai"
model = "gpt-5"
base_url = "http://127.0.0.1:9/v1"
about = "strong at code"
region = "us"
price = { input = 1.25, output = 10.0, cached_input = 0.125 }
timeout = { connect_s = 2, total_s = 60 }
abilities = { images = false }
requests_per_minute = 60

[[worker]]
name = "small"
kind = "scripted"
replies = ["4"]
price = { input = 0, output = 0 }

[profile.ultra]
planner = "language"
planner_worker = "gpt"
max_rounds = 2
max_cost_usd = 2.0
fallback = "single"

[profile.mini]
planner = "single"
planner_worker = "small"

[store]
url = "traces.db"

[serve]
header_timeout_s = 5
idle_timeout_s = 20

[guardrails]
redact = "personal"
home_region = "eu"

[[override]]
name = "cheap chat"
kind = "chat"
pin = "small"
"""


@pytest.mark.parametrize("struct", KEYS, ids=lambda struct: struct.__name__)
def test_every_key_of_earlier_files_is_known(struct: type[msgspec.Struct]) -> None:
    assert set(KEYS[struct].split()) <= set(struct.__struct_fields__)


def test_an_earlier_file_is_read_with_its_values() -> None:
    config = parse_config(FILE).config
    assert [worker.name for worker in config.worker] == ["gpt", "small"]
    assert (config.profile["ultra"].max_rounds, config.profile["mini"].planner_worker) == (2, "small")
    assert (config.serve.idle_timeout_s, config.override[0].pin) == (20, "small")
