"""A real Kubernetes of one node on this machine, with this checkout's images, and its command line tools.

The scripts that start and stop it (build.sh, up.sh, base-image.sh, down.sh) are in the folder TRUNKLINE_K8S.
"""

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/trunkline"
VALUES = Path(__file__).with_name("values.yaml")
HOME = Path(os.environ.get("K8S_HOME") or Path.home() / ".cache/trunkline-k8s")
NODE, ADDRESS = "k8s-test", "10.244.0.1"
"""The node, which is this machine, and its address for pods."""
BASE = "localhost/debian:bookworm"
VERSION, NEXT = "0.1.0", "0.1.1"
"""The second one is the same images under another name: what an upgrade goes to."""
_MONITORING = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring"
_CUSTOM = ("httproutes", "podmonitors", "prometheusrules")
_CTR = ("ctr", "-a", "/run/trunkline-k8s/containerd.sock", "-n", "k8s.io")


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
        # Under a name of their own the dependencies, most of the work, are there for the next time.
        dependencies = ["--target", "dependencies", "-t", f"localhost/trunkline-{role}-dependencies"]
        for wanted in (dependencies, ["-t", images[-1]]):
            arguments = ["--build-arg", f"BUILD={BASE}", "--build-arg", f"ROLE={role}", *wanted]
            run(*build, *arguments, "-f", "helm/images/Containerfile", str(ROOT), timeout=1500.0)
    images.append("localhost/redis:7")
    run(
        *build, "-t", images[-1], "-f", str(Path(__file__).with_name("redis.Containerfile")), str(Path(__file__).parent)
    )
    # What else building leaves behind is gigabytes a time. What a build that was killed still holds stays.
    subprocess.run(["buildah", "rmi", "--prune"], capture_output=True, check=False)
    return images


def custom_resources() -> list[Path]:
    """Definitions of what the chart makes for operators: from Go's types as their makers do, once for each version."""
    modules = Path(__file__).with_name("crds")
    folder = HOME / f"crds-{hashlib.sha256((modules / 'go.sum').read_bytes()).hexdigest()[:16]}"
    if not folder.exists():
        with TemporaryDirectory(dir=HOME) as made:
            go = ["go", "-C", str(modules)]
            run(*go, "tool", "controller-gen", "crd", f"paths={_MONITORING}/v1", f"output:dir={made}", timeout=900.0)
            gateway = run(*go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").strip()
            shutil.copy(f"{gateway}/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml", made)
            shutil.copytree(made, folder)
    return [path for path in folder.iterdir() if path.stem.split("_")[1] in _CUSTOM]


def kill_container(number: str) -> None:
    """SIGKILL, without a word before it."""
    run(*_CTR, "tasks", "kill", "--signal", "SIGKILL", number)


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


ENVIRONMENT = os.environ | {
    "KUBECONFIG": str(HOME / "run/kubeconfig"),
    "PATH": f"{HOME / 'bin'}:{os.environ['PATH']}",
}
