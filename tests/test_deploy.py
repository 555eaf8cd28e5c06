"""What is deployed keeps its promises: image, compose file and manifests, checked against the program itself.

No container is built here. What the files say is held against what the code reads, and the command that the
image starts is started as a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dirigent.cli import app
from dirigent.config.file import Config, load_config, parse_config
from dirigent.serve.http.app import ENDPOINTS
from dirigent.serve.http.auth import OPEN_PATHS
from dirigent.version import __version__

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src" / "dirigent").rglob("*.py"))
GRACE_S = 30


def instructions(name: str = "Dockerfile") -> list[tuple[str, str]]:
    """`(INSTRUCTION, rest)` of a Dockerfile, continued lines joined and comments left out."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    starts = [i for i, (word, _) in enumerate(found) if word == "FROM"]
    return found[starts[-1] :]


def of(word: str, found: list[tuple[str, str]]) -> list[str]:
    return [rest for name, rest in found if name == word]


def manifest(kind: str, file: str = "") -> dict[str, Any]:
    """The one of its kind in a file, by default the one named after the kind."""
    text = (KUBERNETES / (file or f"{kind.lower()}.yaml")).read_text()
    (found,) = (document for document in yaml.safe_load_all(text) if document["kind"] == kind)
    return dict(found)


def pod_specs() -> list[Any]:
    deployment = manifest("Deployment")
    admin = manifest("Pod", "admin-pod.yaml")
    return [
        pytest.param(deployment["spec"]["template"]["spec"], id="deployment"),
        pytest.param(admin["spec"], id="admin pod"),
    ]


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def variables_of(config: Config) -> set[str]:
    """Every variable that this configuration has the program read."""
    return {worker.api_key_env for worker in config.worker if worker.api_key_env} | {config.store.url_env}


def serve_options(words: list[str]) -> dict[str, Any]:
    """The command line as the program itself reads it; an option that there is not raises."""
    command: Any = typer.main.get_command(app)
    assert words[0] == "serve"
    return dict(command.commands["serve"].make_context("serve", words[1:]).params)


# ---- the image --------------------------------------------------------------------------------------------


def test_the_image_runs_as_a_user_by_number_and_not_as_root() -> None:
    user = of("USER", last_stage())[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_every_base_image_has_a_full_version() -> None:
    bases = [rest.split()[0] for rest in of("FROM", instructions())]
    assert bases
    for base in bases:
        assert re.search(r":\d+\.\d+\.\d+-slim", base), base


def test_no_secret_is_built_in() -> None:
    said = " ".join(rest for word, rest in instructions() if word in ("ARG", "ENV", "COPY", "ADD"))
    assert not re.search(r"KEY|TOKEN|PASSWORD|SECRET|PEPPER|\.env", said)


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "everything is left out unless it is named"
    for rest in of("COPY", instructions()):
        if "--from=" in rest:
            continue
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_the_sources_of_the_wheel_are_copied() -> None:
    copied = " ".join(of("COPY", instructions())).split()
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "src"} <= set(copied)


def test_the_extras_that_are_installed_exist() -> None:
    (extras,) = (rest.split("=", 1)[1] for rest in of("ARG", instructions()) if rest.startswith("EXTRAS="))
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert {"serve", "postgres"} <= set(extras.split(","))


def test_the_entry_point_is_a_script_of_the_package_and_its_options_are_real() -> None:
    (entry,) = json.loads(of("ENTRYPOINT", last_stage())[-1])
    assert entry in PROJECT["scripts"]
    options = serve_options(json.loads(of("CMD", last_stage())[-1]))
    assert options["host"] == "0.0.0.0"
    assert options["grace"] == GRACE_S
    assert str(options["port"]) == of("EXPOSE", last_stage())[-1]


def test_the_health_check_asks_an_open_route_at_the_port_served() -> None:
    command = of("HEALTHCHECK", last_stage())[-1]
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", command)[0]
    assert port == of("EXPOSE", last_stage())[-1]
    assert path in OPEN_PATHS & {endpoint.path for endpoint in ENDPOINTS}


def test_the_variables_of_the_image_are_read_by_the_program() -> None:
    names = re.findall(r"(DIRIGENT_\w+)=", " ".join(of("ENV", last_stage())))
    assert names
    for name in names:
        assert f'"{name}"' in SOURCE, name


# ---- compose ----------------------------------------------------------------------------------------------


def test_the_compose_server_is_locked_down() -> None:
    server = compose()["services"]["dirigent"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in server["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    assert int(server["stop_grace_period"].removesuffix("s")) > GRACE_S
    assert server["depends_on"]["postgres"]["condition"] == "service_healthy"


def test_the_compose_images_are_pinned() -> None:
    for service in compose()["services"].values():
        assert re.search(r":\d+\.\d+", service["image"]), service["image"]
    assert compose()["services"]["dirigent"]["image"] == f"dirigent:{__version__}"


def test_the_compose_database_has_a_health_check() -> None:
    assert compose()["services"]["postgres"]["healthcheck"]["test"][1] == "pg_isready"


def test_the_program_and_its_config_read_the_compose_variables() -> None:
    config = load_config(DEPLOY / "dirigent.toml").config
    given = compose()["services"]["dirigent"]["environment"]
    assert set(given) == variables_of(config) | {"DIRIGENT_PEPPER"}
    assert '"DIRIGENT_PEPPER"' in SOURCE


def test_compose_holds_no_secret_itself_and_the_example_names_every_variable() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+)", text))
    lines = [line for line in (DEPLOY / "env.example").read_text().splitlines() if line and line[0] != "#"]
    assert {line.split("=")[0] for line in lines} == asked
    assert all(line.endswith("=") for line in lines), "the example holds no values"
    assert ".env" in (DEPLOY / ".gitignore").read_text().split()


def test_the_compose_mounts_match_the_images_paths() -> None:
    environment = " ".join(of("ENV", last_stage()))
    for volume in compose()["services"]["dirigent"]["volumes"]:
        assert volume.split(":")[1] in environment, volume


# ---- Kubernetes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", pod_specs())
def test_the_pod_is_not_root_and_cannot_become_it(spec: dict[str, Any]) -> None:
    assert spec["securityContext"]["runAsNonRoot"] is True
    uid = int(of("USER", last_stage())[-1].split(":")[0])
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == uid
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("spec", pod_specs())
def test_the_pods_mounts_match_its_variables(spec: dict[str, Any]) -> None:
    (container,) = spec["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    values = {pair["name"]: pair["value"] for pair in container["env"]}
    assert values["DIRIGENT_HOME"] in mounts
    assert str(Path(values["DIRIGENT_CONFIG"]).parent) in mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_the_pod_has_all_three_probes_at_open_routes() -> None:
    (container,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}
    assert set(paths.values()) <= OPEN_PATHS


def test_the_pod_is_given_time_to_stop() -> None:
    spec = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    grace_s = serve_options(container["args"])["grace"]
    assert spec["terminationGracePeriodSeconds"] > pause_s + grace_s


def test_service_policy_and_budget_select_the_servers_alone() -> None:
    wanted = {"app.kubernetes.io/name": "dirigent"}
    deployment = manifest("Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"] == wanted
    assert manifest("Service")["spec"]["selector"] == wanted
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == wanted
    budget = manifest("PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == wanted
    assert budget["minAvailable"] < deployment["spec"]["replicas"]
    admin = manifest("Pod", "admin-pod.yaml")["metadata"]["labels"]
    assert admin["app.kubernetes.io/name"] != wanted["app.kubernetes.io/name"]


def test_the_network_policy_keeps_the_metadata_address_out_of_reach() -> None:
    policy = manifest("NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    blocks = [to["ipBlock"] for rule in policy["egress"] for to in rule["to"] if "ipBlock" in to]
    assert blocks
    for block in blocks:
        assert {"169.254.0.0/16", "10.0.0.0/8"} <= set(block["except"])


def test_the_secret_has_the_values_that_the_program_and_its_config_read() -> None:
    secret = manifest("Secret", "secret.example.yaml")
    config = load_config(KUBERNETES / "dirigent.toml").config
    assert set(secret["stringData"]) == variables_of(config) | {"DIRIGENT_PEPPER"}
    spec = manifest("Deployment")["spec"]["template"]["spec"]
    (source,) = spec["containers"][0]["envFrom"]
    assert source["secretRef"]["name"] == secret["metadata"]["name"]


def test_kustomize_takes_in_every_manifest_but_the_secret_and_the_admin_pod() -> None:
    kustomization = manifest("Kustomization")
    apart = {"kustomization.yaml", "secret.example.yaml", "admin-pod.yaml"}
    assert {path.name for path in KUBERNETES.glob("*.yaml")} - apart == set(kustomization["resources"])
    (image,) = kustomization["images"]
    assert image["newTag"] == __version__
    (generated,) = kustomization["configMapGenerator"]
    assert [(KUBERNETES / name).exists() for name in generated["files"]] == [True]
    admin = manifest("Pod", "admin-pod.yaml")["spec"]["containers"][0]["image"]
    assert admin == f"{image['newName']}:{image['newTag']}"


def test_the_admin_pods_configuration_is_valid_and_names_the_same_store() -> None:
    text = manifest("ConfigMap", "admin-pod.yaml")["data"]["dirigent.toml"]
    assert parse_config(text).config.store == load_config(KUBERNETES / "dirigent.toml").config.store


def test_both_configurations_are_one() -> None:
    assert (DEPLOY / "dirigent.toml").read_text() == (KUBERNETES / "dirigent.toml").read_text()


# ---- the command of the image, started --------------------------------------------------------------------


async def test_the_images_command_refuses_without_a_key_then_serves_and_stops(tmp_path: Path) -> None:
    words = json.loads(of("CMD", last_stage())[-1])
    words[words.index("--port") + 1] = "0"
    environ = {
        "PATH": os.environ["PATH"],
        "DIRIGENT_HOME": str(tmp_path),
        "DIRIGENT_CONFIG": str(DEPLOY / "dirigent.toml"),
        "DIRIGENT_PEPPER": "p" * 64,
        "DIRIGENT_STORE_URL": str(tmp_path / "store.db"),
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_KEY": "none",
    }
    refused = await _dirigent(*words, environ=environ)
    _, said = await refused.communicate()
    assert refused.returncode == 2
    assert b"dirigent keys create" in said
    made = await _dirigent("keys", "create", "team a", environ=environ)
    await made.communicate()
    running = await _dirigent(*words, environ=environ)
    try:
        assert running.stderr is not None
        line = (await running.stderr.readline()).decode()
        assert line.startswith("serving http://0.0.0.0:"), line
        port = line.split()[1].rsplit(":", 1)[1].removesuffix("/v1")
        await asyncio.to_thread(_checked_by_the_image, port)
    finally:
        running.send_signal(signal.SIGTERM)
        await asyncio.wait_for(running.communicate(), 20)
    assert running.returncode == 0


def _checked_by_the_image(port: str) -> None:
    """The health check's own code, pointed at another port."""
    command = of("HEALTHCHECK", last_stage())[-1].split("CMD ", 1)[1]
    interpreter, flag, code = json.loads(command)
    assert (interpreter, flag) == ("python", "-c")
    exec(code.replace(":8000/", f":{port}/"), {})
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(request, timeout=5)
    refused.value.close()


async def _dirigent(*words: str, environ: dict[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dirigent", *words),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


# ---- the page that tells it -------------------------------------------------------------------------------


def test_every_file_that_the_guide_names_is_there() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    for name in set(re.findall(r"deploy/[\w./-]+\w", text)) - {"deploy/.env"}:
        assert (ROOT / name).exists(), name


def test_every_dirigent_command_in_the_guides_is_real() -> None:
    command: Any = typer.main.get_command(app)
    pages = [ROOT / "docs" / f"{name}.md" for name in ("deploy", "governance", "cost", "api", "integrations")]
    lines = [line for page in pages for line in re.findall(r"^\$ (dirigent .*)$", page.read_text(), re.MULTILINE)]
    assert lines
    for line in lines:
        words = shlex.split(line.split(" > ")[0].split(" | ")[0], comments=True)[1:]
        _parsed(command, words, line)


@pytest.mark.parametrize("page", ["cost", "governance"])
def test_every_piece_of_configuration_in_the_guides_is_valid(page: str) -> None:
    workers = "".join(f'[[worker]]\npreset = "{name}"\n' for name in ("gpt-5", "claude-sonnet-4", "gemma-3-27b"))
    text = (ROOT / "docs" / f"{page}.md").read_text()
    pieces = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert pieces
    for piece in pieces:
        parse_config(f"{workers}\n{piece}")


def _parsed(command: Any, words: list[str], line: str) -> None:
    while hasattr(command, "commands"):
        assert words[0] in command.commands, line
        command, words = command.commands[words[0]], words[1:]
    command.make_context("dirigent", list(words), resilient_parsing=False)
