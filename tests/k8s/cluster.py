"""A real Kubernetes of one node on this machine, with this checkout's images, and its command line tools.

The scripts that start and stop it (build.sh, up.sh, base-image.sh, down.sh) are in the folder TRUNKLINE_K8S.
"""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/trunkline"
VALUES = Path(__file__).with_name("values.yaml")
HOME = Path(os.environ.get("K8S_HOME") or Path.home() / ".cache/trunkline-k8s")
BASE = "localhost/debian:bookworm"
VERSION, NEXT = "0.1.0", "0.1.1"
"""The second one is the same images under another name: what an upgrade goes to."""
_CTR = ("ctr", "-a", "/run/trunkline-k8s/containerd.sock", "-n", "k8s.io")
_RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class CommandError(Exception):
    """A command that failed, and what it said."""


def run(*command: str, input: str | None = None, timeout: float = 300.0) -> str:
    """What the command prints. Raises CommandError."""
    done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT)
    if done.returncode:
        raise CommandError(f"{shlex.join(command[:8])}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def eventually(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Its result once it is true. Raises the last CommandError, or AssertionError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found, failure = what(), None
        except CommandError as error:
            found, failure = None, error
        if found:
            return found
        if time.monotonic() > deadline:
            raise failure or AssertionError(f"not within {seconds:g} s")
        time.sleep(1.0)


@contextmanager
def cluster(scripts: Path) -> Iterator[None]:
    """Up, with all images loaded."""
    images = _build(scripts)
    run(str(scripts / "down.sh"))  # What a run that was killed has left.
    run(str(scripts / "up.sh"))
    kubelet = None
    try:
        kubelet = _keep_images()
        for image in images:
            run(str(scripts / "base-image.sh"), "load", image)
        for image in images[:2]:
            run(*_CTR, "images", "tag", image, image.replace(VERSION, NEXT))
        yield
    finally:
        run(str(scripts / "down.sh"))
        if kubelet is not None:
            kubelet.wait(timeout=60.0)


def _build(scripts: Path) -> list[str]:
    run(str(scripts / "base-image.sh"))
    rust = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    build = ["buildah", "build", "--isolation", "chroot", "--layers", "--format", "docker"]
    build += ["-v", "/etc/ssl/certs:/etc/ssl/certs:ro", "-v", f"{rust}:/opt/rust:ro", "--build-arg", f"BASE={BASE}"]
    images = []
    for role in ("router", "agent"):
        images.append(f"localhost/trunkline-{role}:{VERSION}")
        arguments = ["--build-arg", f"BUILD={BASE}", "--build-arg", f"ROLE={role}", "-t", images[-1]]
        run(*build, *arguments, "-f", "helm/images/Containerfile", str(ROOT), timeout=1500.0)
    images.append("localhost/redis:7")
    run(
        *build, "-t", images[-1], "-f", str(Path(__file__).with_name("redis.Containerfile")), str(Path(__file__).parent)
    )
    # What building leaves behind is some five gigabytes a time. What a build that was killed still holds stays.
    subprocess.run(["buildah", "rmi", "--prune"], capture_output=True, check=False)
    return images


def _keep_images() -> "subprocess.Popen[bytes]":
    """Starts the kubelet again, so that it never deletes images: those that no pod uses cannot be pulled here.

    It would as soon as the disk is 85 % full.
    """
    pids, config, log = HOME / "run/pids", HOME / "run/kubelet.yaml", HOME / "run/log/kubelet.log"
    pid = next(line.split()[0] for line in pids.read_text().splitlines() if line.endswith(" kubelet"))
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    os.kill(int(pid), signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text(), 30.0)
    config.write_text(config.read_text() + "imageGCHighThresholdPercent: 100\n")
    with log.open("a") as out:
        kubelet = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    pids.write_text(pids.read_text().replace(f"{pid} kubelet", f"{kubelet.pid} kubelet"))
    pause = HOME / "run/img/pause.tar"
    run(*_CTR, "images", "import", str(pause))
    return kubelet


class Namespace:
    """A namespace where Pod Security `restricted` is enforced, with kubectl and helm for it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return run("kubectl", "-n", self.name, *arguments, input=input)

    def helm(self, *arguments: str) -> str:
        return run("helm", "-n", self.name, *arguments)

    def install(self, *sets: str, values: dict[str, Any] | None = None, verb: str = "install") -> None:
        """The release `tl`; returns before anything is ready."""
        settings = [word for one in sets for word in ("--set", one)]
        more = ["-f", str(VALUES)]
        if values is not None:
            path = HOME / f"run/{self.name}-values.yaml"
            path.write_text(yaml.safe_dump(values))
            more += ["-f", str(path)]
        self.helm(verb, "tl", str(CHART), *more, *settings)

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def ready(self, workload: str, seconds: int = 240) -> None:
        """Waits for a rollout: `deployment/tl-router`."""
        self.kubectl("rollout", "status", workload, f"--timeout={seconds}s")

    def pods(self, component: str) -> dict[str, str]:
        """UIDs of the pods that are ready, by name."""
        found = self.get("pods", "-l", f"app.kubernetes.io/component={component}")["items"]
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
        }

    def kill(self, pod: str) -> None:
        """SIGKILL, without a word before it: Kubernetes starts the container again."""
        container = self.get("pod", pod)["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        run(*_CTR, "tasks", "kill", "--signal", "SIGKILL", container)

    def status(self) -> dict[str, Any]:
        """As a router sees the fleet."""
        found: dict[str, Any] = json.loads(
            self.kubectl("exec", "deployment/tl-router", "--", "trunkline", "status", "--json")
        )
        return found

    def serving(self) -> set[str]:
        """Names of the nodes that a router takes for ready."""
        return {node["name"] for node in self.status()["nodes"] if node["state"] == "ready"}

    def client(self) -> None:
        """A pod named `client`, where `kubectl exec` runs what asks the router."""
        container = {
            "name": "client",
            "image": f"localhost/trunkline-router:{VERSION}",
            "imagePullPolicy": "Never",
            "command": ["sleep", "infinity"],
            "securityContext": _CONTAINER,
        }
        spec = {"containers": [container], "securityContext": _RESTRICTED, "terminationGracePeriodSeconds": 0}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec})
        self.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")

    @contextmanager
    def streams(self, url: str = "http://tl-router") -> Iterator["Streams"]:
        """A stream begun every 200 ms from the pod `client` on; `report` is there once the block has ended."""
        script = Path(__file__).with_name("streams.py").read_text()
        command = ["kubectl", "-n", self.name, "exec", "-i", "client", "--", "python3", "-c", script, url]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
        )
        streams = Streams()
        try:
            yield streams
            out, _ = process.communicate("", timeout=90.0)
            streams.report = json.loads(out)
        finally:
            process.kill()
            process.wait()


class Streams:
    """What became of the streams: see `streams.py`."""

    report: dict[str, Any]


@contextmanager
def namespace(name: str) -> Iterator[Namespace]:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    here = Namespace(name)
    run(
        "kubectl",
        "create",
        "-f",
        "-",
        input=yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": level}}),
    )
    try:
        yield here
    except BaseException:
        for what in (("get", "pods", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp")):
            print(here.kubectl(*what)[-4000:])
        print(run("kubectl", "-n", name, "logs", "-l", "app.kubernetes.io/name=trunkline", "--tail=20", "--prefix"))
        raise
    finally:
        run("kubectl", "delete", "namespace", name, "--wait=false")
        here.kubectl("delete", "pods", "--all", "--grace-period=1")  # Here nobody waits for their streams.
        run("kubectl", "wait", "--for=delete", f"namespace/{name}", "--timeout=120s")


ENVIRONMENT = os.environ | {
    "KUBECONFIG": str(HOME / "run/kubeconfig"),
    "PATH": f"{HOME / 'bin'}:{os.environ['PATH']}",
}
