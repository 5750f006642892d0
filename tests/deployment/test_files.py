"""Compose and Kubernetes: valid files, no privileges, settings that exist."""

import json
import re
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from postroad.kernel.errors import AlreadyExists
from postroad.runtime.deployment_secrets import FILES, write_secrets
from postroad.settings import load_settings
from tests.architecture.source import ROOT
from tests.deployment.kustomize import Resource, render

pytestmark = pytest.mark.engine

DEPLOY = ROOT / "deploy"
OVERLAYS = ("base", "overlays/small", "overlays/three-zones")
VERSIONS = ("1.29", "1.31", "1.33")


def rendered(name: str) -> list[Resource]:
    return render((DEPLOY / "kubernetes" / name).resolve())


def pods(name: str) -> dict[str, dict[str, Any]]:
    """The pod templates by the name of their Deployment or StatefulSet."""
    return {
        one["metadata"]["name"]: one["spec"]["template"] for one in rendered(name) if one["kind"] in ("Deployment", "StatefulSet")
    }


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return content


@pytest.mark.parametrize("name", ["compose.yaml", "compose.rabbitmq.yaml"])
def test_the_compose_files_have_the_form_of_the_specification(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / name)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid_for_kubernetes(version: str, tmp_path: Path) -> None:
    for name in OVERLAYS:
        (tmp_path / f"{name.replace('/', '-')}.yaml").write_text(yaml.safe_dump_all(rendered(name)))
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version]
    done = subprocess.run([*command, *map(str, tmp_path.glob("*.yaml"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_pod_has_privileges(name: str) -> None:
    found = pods(name)
    assert set(found) == {"nats", "gateway", "background", "pipeline"}
    for pod in found.values():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_settings_of_the_pods_are_valid_and_leave_time_to_stop(name: str) -> None:
    [config] = [one["data"] for one in rendered(name) if one["metadata"]["name"] == "postroad-settings"]
    secret = {"POSTROAD_PLATFORM_KEY": "k" * 40}
    chosen = {key: value for key, value in config.items() if key != "POSTROAD_CONFIG"}
    settings = load_settings(chosen | secret)
    assert settings.replica_count == (1 if "small" in name else 3)
    for pod in ("gateway", "background"):
        assert pods(name)[pod]["spec"]["terminationGracePeriodSeconds"] > settings.stop_seconds + 5
    probes = pods(name)["gateway"]["spec"]["containers"][0]
    assert (probes["livenessProbe"]["httpGet"]["path"], probes["readinessProbe"]["httpGet"]["path"]) == ("/livez", "/readyz")


def test_servers_and_zones_are_spread() -> None:
    def key(name: str) -> str:
        rules = pods(name)["nats"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        text: str = rules[0]["topologyKey"]
        return text

    assert key("base") == "kubernetes.io/hostname" and key("overlays/three-zones") == "topology.kubernetes.io/zone"
    [budget] = [one for one in rendered("base") if one["kind"] == "PodDisruptionBudget" and one["metadata"]["name"] == "nats"]
    assert budget["spec"]["maxUnavailable"] == 1
    counts = {
        one["metadata"]["name"]: one["spec"]["replicas"]
        for one in rendered("overlays/small")
        if "replicas" in one.get("spec", {})
    }
    assert counts == {"nats": 1, "gateway": 1, "background": 1, "pipeline": 1}


def test_a_patch_without_a_target_is_refused(tmp_path: Path) -> None:
    patch = "[{patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}'}]"
    (tmp_path / "kustomization.yaml").write_text(f"resources: []\npatches: {patch}\n")
    with pytest.raises(ValueError, match="ConfigMap"):
        render(tmp_path)


def test_rabbitmq_is_added_to_every_process_that_serves_queues() -> None:
    added = yaml.safe_load((DEPLOY / "compose.rabbitmq.yaml").read_text())["services"]
    serving = {name for name, one in compose()["services"].items() if one.get("command", [""])[0] == "serve"}
    assert serving == set(added) - {"rabbitmq"}
    for name in serving:
        url = added[name]["environment"]["POSTROAD_RABBITMQ_URL"].replace("${RABBITMQ_PASSWORD:?choose a password", "p")
        assert load_settings({"POSTROAD_RABBITMQ_URL": url.replace(" without special characters}", "")})
        assert list(added[name]["depends_on"]) == ["rabbitmq"]
    rabbit = added["rabbitmq"]
    assert rabbit["healthcheck"]["test"] and rabbit["volumes"] and "ALL" in rabbit["cap_drop"]


def test_containers_of_compose_have_no_privileges_and_their_files_exist(tmp_path: Path) -> None:
    services = compose()["services"]
    assert {name for name in services if name.startswith("nats-")} == {"nats-1", "nats-2", "nats-3"}
    secret_files = set()
    for name, service in services.items():
        assert "ALL" in service["cap_drop"], name
        assert name == "grafana" or service["read_only"] is True, name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./secrets/"):
                secret_files.add(source.removeprefix("./secrets/"))
            elif source.startswith("./"):
                assert (DEPLOY / source).exists(), source
    assert secret_files <= set(FILES)
    for name in ("gateway-1", "background-2", "pipeline"):
        environment = {key: value for key, value in services[name]["environment"].items() if key.startswith("POSTROAD_")}
        environment.pop("POSTROAD_CONFIG")
        assert load_settings(environment | {"POSTROAD_PLATFORM_KEY": "k" * 40}).replica_count == 3
        grace = int(services[name]["stop_grace_period"].removesuffix("s"))
        assert grace > float(environment["POSTROAD_STOP_SECONDS"]) + 5


def test_no_other_container_gets_the_fixed_address_of_a_gateway() -> None:
    """Containers without a fixed address get another one at each start, and the next start of the gateway would fail."""
    content = compose()
    [pool] = content["networks"]["edge"]["ipam"]["config"]
    fixed = [
        ip_address(network["ipv4_address"])
        for service in content["services"].values()
        if isinstance(service.get("networks"), dict)
        for network in service["networks"].values()
        if network
    ]
    assert len(fixed) == len(set(fixed)) == 2
    assert all(one in ip_network(pool["subnet"]) and one not in ip_network(pool["ip_range"]) for one in fixed)


def test_the_image_runs_without_root_and_without_a_compiler() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))
    assert {"console", "wheel", "runtime", "postroad", "postroad-pipeline"} <= set(stages)
    for name in ("postroad", "postroad-pipeline"):
        assert "USER 10001:10001" in stages[name]
        assert not re.search(r"gcc|build-essential|-dev\b", stages["runtime"] + stages[name])


def test_the_secrets_of_an_installation_are_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    write_secrets(folder)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(before) == set(FILES) and folder.stat().st_mode & 0o077 == 0
    assert all((folder / name).stat().st_mode & 0o004 for name in FILES), "a container runs as another user"
    with pytest.raises(AlreadyExists):
        write_secrets(folder)
    assert load_settings({"POSTROAD_CONFIG": str(folder / "postroad.toml")}).platform_key is not None
    assert before["tenant.key"] in before["credentials.toml"] and before["admin.key"] in before["credentials.toml"]
    assert json.dumps(before).count("nkey") == 1
