"""What is deployed is what is there: paths, ports, options and extras of the image, the compose file and its workflow.

No image is built here; `.github/workflows/image.yml` does that.
"""

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
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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


def check_words(words: list[str]) -> dict[str, Any]:
    """What the command line reads: a verb that there is, options with values, scopes that there are. Else it raises."""
    verb: Any = typer.main.get_command(build())
    while hasattr(verb, "commands"):
        name, *words = words
        assert name in verb.commands, f"there is no verb {name!r}"
        verb = verb.commands[name]
    given: dict[str, Any] = verb.make_context(verb.name, list(words)).params
    assert set(given.get("scope") or ()) <= set(SCOPES)
    return given


def filled(lines: list[str]) -> list[str]:
    """With what the head of the compose file exports in place of `${NAME:?...}`."""
    exported = re.findall(r"(RELEASES?)=(\S+)", _text("deploy/compose.yaml").partition("\nname:")[0])
    given = dict(exported[-2:])
    return [re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: given[found[1]], line) for line in lines]


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
    installs = [part for line in of("RUN") for part in line.split("&&") if "pip install" in part]
    assert len(installs) == 2 and all("-c constraints.txt" in part for part in installs)
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', installs[1])
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]) and "serve" in extras
    oldest = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    version = re.search(r"^python:(\d+)\.(\d+)-slim@", of("FROM")[0])
    assert version is not None and tuple(map(int, version.groups())) >= oldest
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
    assert json.loads(of("ENTRYPOINT")[0])[0] in PROJECT["scripts"]
    assert json.loads(of("VOLUME")[0]) == of("WORKDIR")[-1:] == ["/data"]


def test_the_service_is_started_as_it_can_be() -> None:
    words = filled(SERVE["command"])
    assert value_of(words, "--port") == of("EXPOSE")[0] and value_of(words, "--keys").startswith("/data/")
    assert value_of(words, "--store").partition(":")[0] in STORES
    assert json.loads(of("CMD")[0]) == ["serve", "--help"], "which run is served has to be said"


def test_a_release_is_called_by_its_version_and_followed() -> None:
    """Versions are called as their folders, so what is mounted is the folder above them, and that is watched."""
    words = filled(SERVE["command"])
    given = check_words(words)
    run, watched = given["run"], Path(given["watch"])
    assert run.parent == watched == Path("/models") and run.name == "2026-11-25"
    assert given["canary"] is None, "the store's users are the canaries"
    assert filled(SERVE["volumes"])[0] == "/path/to/releases:/models:ro"


def test_whatever_is_fetched_is_pinned() -> None:
    """Images by digest, actions by commit: a tag may come to name something else."""
    stages = {line.split()[-1] for line in of("FROM") if " AS " in line}
    images = [line.split()[0] for line in of("FROM") if line.split()[0] not in stages]
    images += [service["image"] for service in COMPOSE["services"].values() if "build" not in service]
    assert len(images) == 3
    for image in images:
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image
    assert "syntax=" not in _text("deploy/Dockerfile"), "the frontend is an image too"
    used = [line for file in WORKFLOW.parent.glob("*.yml") for line in re.findall(r"uses: *(.*)", file.read_text())]
    assert len(used) >= 10
    used = [line for line in used if not line.startswith("$/")]  # a workflow of this repository, at its own commit
    for line in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    assert len({line.partition("@")[0] for line in used}) == len(set(used)), "one action, one commit"


def test_compose() -> None:
    services = COMPOSE["services"]
    assert (DEPLOY / SERVE["build"]["context"] / SERVE["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert value_of(SERVE["command"], "--store").partition("://")[2].partition(":")[0] in services
    assert value_of(services["valkey"]["command"], "--appendonly") == "yes"
    places = {place.split(":")[-2 if place.endswith(":ro") else -1] for place in filled(SERVE["volumes"])}
    assert places == {"/models", "/data"}
    waits = {one["condition"] for service in services.values() for one in service.get("depends_on", {}).values()}
    assert waits == {"service_healthy"} and all("healthcheck" in services[name] for name in ("serve", "valkey"))
    (check,) = of("HEALTHCHECK")
    assert SERVE["healthcheck"]["test"] == json.loads(check[check.index("[") - 4 :].replace("CMD [", '["CMD", '))
    for name, service in services.items():
        assert service["read_only"] and "no-new-privileges:true" in service["security_opt"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert all(depends in services for depends in service.get("depends_on", ()))
        for place in service["volumes"]:
            source = place.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith(("./", "${RELEASES")), place
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
    for line in found:
        check_words(shlex.split(line))


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
