"""What is deployed is what is there: paths, ports, options and extras of the image, the compose file and its workflow.

No image is built here; `.github/workflows/image.yml` does that.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from fullrank.cli import build
from fullrank.serving.keys import SCOPES, scope_of
from fullrank.serving.stores import STORES

ROOT = Path(__file__).resolve().parent.parent
DEPLOY, WORKFLOW = ROOT / "deploy", ROOT / ".github" / "workflows" / "image.yml"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVE: dict[str, Any] = COMPOSE["services"]["serve"]
STEPS: list[dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["build"]["steps"]


def instructions() -> list[tuple[str, str]]:
    """(FROM, `python:3.12-slim AS build`), ... of the Dockerfile, with continued lines joined."""
    text = "\n".join(line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], " ".join(line.split()[1:])) for line in lines]


def of(kind: str) -> list[str]:
    return [rest for one, rest in instructions() if one == kind]


def check_words(words: list[str]) -> None:
    """A verb that there is, with options that it has and scopes that there are."""
    verb = typer.main.get_command(build())
    while hasattr(verb, "commands"):
        name, *words = words
        assert name in verb.commands, f"there is no verb {name!r}"
        verb = verb.commands[name]
    options = {option for parameter in verb.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert {words[i + 1] for i, word in enumerate(words) if word == "--scope"} <= set(SCOPES)


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_image_copies_what_is_there_and_lets_nothing_else_in() -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert [line for line in ignore if line and not line.startswith(("#", "!", "**/"))] == ["*"]
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    copied = {word for line in of("COPY") if "--from" not in line for word in line.split()[:-1]}
    assert {word.removeprefix("./") for word in copied} == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_installs_by_the_constraints_what_has_that_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installs = [part for line in of("RUN") for part in line.split("&&") if "pip install" in part]
    assert len(installs) == 2 and all("-c constraints.txt" in part for part in installs)
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', installs[1])
    assert set(extras.split(",")) <= set(project["optional-dependencies"]) and "serve" in extras
    oldest = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert tuple(int(n) for n in of("ARG")[0].removeprefix("PYTHON=").split(".")) >= oldest
    index = re.search(r"TORCH_CPU := (\S+)", (ROOT / "Makefile").read_text())
    assert index is not None and index[1] in installs[0]


def test_the_image_is_not_root_and_says_whether_it_is_ready() -> None:
    kinds = [kind for kind, _ in instructions()]
    assert of("USER") == ["10001:10001"] and kinds.index("USER") > len(kinds) - 1 - kinds[::-1].index("RUN")
    (check,), (port,) = of("HEALTHCHECK"), of("EXPOSE")
    words = json.loads(check[check.index("[") :])
    compile(words[2], "HEALTHCHECK", "exec")
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", words[2])
    assert found is not None and found[1] == port and scope_of("GET", found[2]) is None
    assert (
        json.loads(of("ENTRYPOINT")[0])[0] in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    )
    assert json.loads(of("VOLUME")[0]) == of("WORKDIR")[-1:] == ["/data"]


@pytest.mark.parametrize("words", [json.loads(of("CMD")[0]), SERVE["command"]], ids=["image", "compose"])
def test_the_service_is_started_as_it_can_be(words: list[str]) -> None:
    assert value_of(words, "--port") == of("EXPOSE")[0] and value_of(words, "--keys").startswith("/data/")
    assert value_of(words, "--store").partition(":")[0] in STORES or value_of(words, "--store").startswith("/data/")
    if "serve" not in typer.main.get_command(build()).commands:  # type: ignore[attr-defined]
        pytest.skip("there is no verb serve yet")
    check_words(words)


def test_compose() -> None:
    services = COMPOSE["services"]
    assert (DEPLOY / SERVE["build"]["context"] / SERVE["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert value_of(SERVE["command"], "--store").partition("://")[2].partition(":")[0] in services
    assert value_of(services["valkey"]["command"], "--appendonly") == "yes"
    places = {place.split(":")[-2 if place.endswith(":ro") else -1] for place in SERVE["volumes"]}
    assert places == {"/model", "/data"} and SERVE["command"][1] == "/model"
    for name, service in services.items():
        assert service["read_only"] and "no-new-privileges:true" in service["security_opt"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert all(depends in services for depends in service.get("depends_on", ()))
        for place in service["volumes"]:
            source = place.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith(("./", "${RUN")), place
    drain = re.search(r"^DRAIN = (\d+)", _text("src/fullrank/serving/server.py"), re.M)
    assert drain is None or int(SERVE["stop_grace_period"].removesuffix("s")) > int(drain[1]) + 10


def test_prometheus_asks_the_service() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"serve:{of('EXPOSE')[0]}"]}]
    assert scope_of("GET", job["metrics_path"]) == "read"
    volumes = COMPOSE["services"]["prometheus"]["volumes"]
    assert f"./metrics.key:{job['authorization']['credentials_file']}:ro" in volumes
    assert "./prometheus.yml:/etc/prometheus/prometheus.yml:ro" in volumes
    assert "/deploy/metrics.key" in _text(".gitignore").splitlines()


def test_the_workflow_builds_this_image_with_few_rights() -> None:
    text = WORKFLOW.read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    (made,) = [step["with"] for step in STEPS if "build-push" in step.get("uses", "")]
    assert (ROOT / made["file"]) == DEPLOY / "Dockerfile" and made["tags"] == SERVE["image"] and not made.get("push")
    assert "secrets." not in text and "pull_request_target" not in text
    for step in STEPS:
        assert re.fullmatch(r"[\w/-]+@v\d+", step.get("uses", "a@v1"))
        if "run" in step:
            subprocess.run(["bash", "-n"], input=step["run"].encode(), check=True)


def _commands() -> list[str]:
    """Every command line of fullrank in the workflow, the compose file's head and the Dockerfile's."""
    lines = [line for step in STEPS for line in step.get("run", "").replace("\\\n", " ").splitlines()]
    lines += [line.removeprefix("# ") for line in _text("deploy/compose.yaml").splitlines()]
    found = []
    for line in lines:
        part = re.search(r"^\s*fullrank (\w.*)|fullrank:local (serve .*)|-T serve (.*)|--no-deps serve (.*)", line)
        if part is not None:
            found.append(re.split(r"\s[|>]", next(group for group in part.groups() if group))[0])
    return found


def test_every_command_is_one() -> None:
    found = _commands()
    assert len(found) >= 9
    verbs = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
    for line in found:
        words = shlex.split(line)
        if words[0] != "serve" or "serve" in verbs:
            check_words(words)


def test_the_paths_that_start_the_workflow_are_there() -> None:
    events = yaml.safe_load(WORKFLOW.read_text())[True]  # YAML 1.1 reads the key `on` as true
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = files.stdout.splitlines()
    if not names:
        pytest.skip("no git here")
    for pattern in (*events["push"]["paths"], *events["pull_request"]["paths"]):
        assert fnmatch.filter(names, pattern), pattern


def _text(name: str) -> str:
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
