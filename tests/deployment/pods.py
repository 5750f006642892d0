"""Runs the containers of rendered Kubernetes manifests as processes of this machine.

A container gets its command, the variables of the image and of the manifest, and its mounts. What differs from a pod: a mounted
path is a folder below `home`, names of pods are ports on loopback, and neither user, root filesystem nor network policies apply.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from postroad.runtime.embedded_server import find_server, free_port
from postroad.runtime.process_supervisor import _die_with_parent
from tests.deployment.kustomize import Resource

_HTTP_PORT = 8080  # of the image
_PROGRAMS = {"postroad": [sys.executable, "-m", "postroad"], "nats-server": [str(find_server())]}
_POD_ADDRESS = re.compile(r"\b([a-z]+-\d+)\.[a-z]+:(\d+)")  # a pod of a StatefulSet, by its headless service
_ANY_ADDRESS = re.compile(r"\b0\.0\.0\.0:(\d+)")


@dataclass(slots=True)
class Pod:
    """One container. `ports`: on loopback, by the container's port."""

    name: str
    spec: Mapping[str, Any]
    home: Path
    ports: dict[int, int]
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    @property
    def container(self) -> Mapping[str, Any]:
        [found] = self.spec["containers"]
        return dict(found)

    def port(self, name: str) -> int:
        return self.ports[next(one["containerPort"] for one in self.container["ports"] if one["name"] == name)]

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    async def passes(self, probe: str) -> bool:
        """True if the container passes one of its probes."""
        assert self.process is not None and self.process.poll() is None, f"{self.name} ended: {self.log[-1500:]}"
        request = self.container[probe]["httpGet"]
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port(request['port'])}{request['path']}") as answer,
            ):
                return answer.status < 400
        except aiohttp.ClientError:
            return False

    def stop(self) -> int:
        """End it as Kubernetes does; the exit code. Raises TimeoutExpired after the grace period."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.spec["terminationGracePeriodSeconds"])


class Pods:
    """The pods of rendered resources, with the secrets of an installation in a folder."""

    def __init__(self, resources: Sequence[Resource], image: Mapping[str, str], secrets: Path, home: Path) -> None:
        self._resources, self._image, self._secrets = resources, image, secrets
        self.pods: dict[str, Pod] = {}
        for one in resources:
            if one["kind"] in ("Deployment", "StatefulSet"):
                for number in range(one["spec"]["replicas"]):
                    name = f"{one['metadata']['name']}-{number}"
                    spec = one["spec"]["template"]["spec"]
                    declared = [port["containerPort"] for port in spec["containers"][0].get("ports", ())]
                    self.pods[name] = Pod(name, spec, home / name, {port: free_port() for port in (*declared, _HTTP_PORT)})

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            pod = self.pods[name]
            pod.home.mkdir(parents=True)
            folders = self._mount(pod)
            container = pod.container
            environment = dict(self._image) | self._environment(pod) | {"POSTROAD_PORT": str(pod.ports[_HTTP_PORT])}
            local = {name: self._local(pod, folders, value) for name, value in environment.items()}
            arguments = [self._local(pod, folders, one.replace("$(POD_NAME)", pod.name)) for one in container["args"]]
            pod.process = subprocess.Popen(
                [*_PROGRAMS[container["command"][0]], *arguments],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")} | local,
                cwd=pod.home,
                stdin=subprocess.DEVNULL,
                stdout=(pod.home / "log").open("ab"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def stop_all(self) -> None:
        """Kill what is still running."""
        for pod in self.pods.values():
            if pod.process is not None and pod.process.poll() is None:
                os.killpg(pod.process.pid, signal.SIGKILL)
                pod.process.wait()

    # What a container sees

    def _config(self, name: str) -> Mapping[str, str]:
        [found] = [one for one in self._resources if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name]
        return dict(found["data"])

    def _environment(self, pod: Pod) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in pod.container.get("envFrom", ()):
            found |= self._config(source["configMapRef"]["name"])
        for one in pod.container.get("env", ()):
            found[one["name"]] = one.get("value", pod.name)  # the only field that is used is the pod's name
        return found

    def _mount(self, pod: Pod) -> dict[str, Path]:
        """Create the mounted folders and files. Returns the folders by the path in the container."""
        volumes = {one["name"]: one for one in pod.spec.get("volumes", ())}
        mounts = sorted(pod.container["volumeMounts"], key=lambda one: str(one["mountPath"]).count("/"))
        folders: dict[str, Path] = {}
        files: list[tuple[Path, Mapping[str, Any]]] = []
        for mount in mounts:
            path = Path(mount["mountPath"])
            volume = volumes.get(mount["name"], {})
            folder = path.parent if "subPath" in mount else path
            if not any(path == Path(known) or Path(known) in path.parents for known in folders):
                folders[str(folder)] = pod.home / "root" / folder.relative_to("/")
            target = pod.home / "root" / path.relative_to("/")
            (target.parent if "subPath" in mount else target).mkdir(parents=True, exist_ok=True)
            files.append((target, {**volume, "subPath": mount.get("subPath")}))
        for target, volume in files:
            self._fill(pod, folders, target, volume)
        return folders

    def _fill(self, pod: Pod, folders: Mapping[str, Path], target: Path, volume: Mapping[str, Any]) -> None:
        if "configMap" in volume:
            text = self._config(volume["configMap"]["name"])[volume["subPath"]]
            target.write_text(self._local(pod, folders, text))
        elif "secret" in volume and volume["subPath"]:
            shutil.copy(self._secrets / volume["subPath"], target)
        elif "secret" in volume:
            shutil.copytree(self._secrets, target, dirs_exist_ok=True)

    def _local(self, pod: Pod, folders: Mapping[str, Path], text: str) -> str:
        """A text of the manifest with folders and ports of this machine."""
        text = _POD_ADDRESS.sub(lambda found: f"127.0.0.1:{self.pods[found[1]].ports[int(found[2])]}", text)
        text = _ANY_ADDRESS.sub(lambda found: f"127.0.0.1:{pod.ports[int(found[1])]}", text)
        text = "127.0.0.1" if text == "0.0.0.0" else text
        for path in sorted(folders, key=len, reverse=True):
            text = re.sub(rf'(?<![\w/-]){re.escape(path)}(?=["/\s]|$)', str(folders[path]), text)
        return text
