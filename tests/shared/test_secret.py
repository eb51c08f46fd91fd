"""Where the cluster secret comes from."""

from pathlib import Path

import pytest

from trunkline.shared.errors import ConfigError
from trunkline.shared.secret import VARIABLE, load_secret


def test_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert load_secret(None) is None
    file = tmp_path / "secret"
    file.write_text("a secret that is long enough\n")
    assert load_secret(file) == "a secret that is long enough"
    monkeypatch.setenv(VARIABLE, "from the environment")
    assert load_secret(None) == "from the environment"
    for bad in ("short", "two lines of secret\nare one too many", "sécret with an accent"):
        file.write_text(bad)
        with pytest.raises(ConfigError, match="16 printable ASCII") as caught:
            load_secret(file)
        assert bad not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_secret(tmp_path / "none")
