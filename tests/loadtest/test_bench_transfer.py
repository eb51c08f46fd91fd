"""The bench of transfers finds what it asks for, in one question."""

import shutil

import pytest

from trunkline.loadtest.bench.transfer import encrypted, read
from trunkline.loadtest.bench.transfer.locate import loopback


def test_a_chain_is_located_with_one_question() -> None:
    rows = {str(row["figure"]).partition(": ")[2]: row for row in loopback(1, 20)}
    assert rows["questions"]["ok"]
    assert rows["bytes of question"]["ours"] == 24 + 32 + 8 + 12 * 13


def test_pages_are_read_beside_plain_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PAGES", 8)
    rows = list(read.read(1, None))
    rivals = {str(row["reach"]) for row in rows}
    if shutil.which("gcc") is None:
        assert rivals == {"not compared: no gcc"}
    else:
        assert rivals >= {">= 0.95x socket copy in C", ">= 0.85x memcpy", "beside memcpy"}
    assert all(isinstance(row["ours"], float) and row["ours"] >= 0 for row in rows)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here: it makes the certificates")
def test_pages_are_read_in_tls_beside_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (read, encrypted):
        monkeypatch.setattr(module, "PAGES", 8)
    speed, cpu = encrypted.encrypted(1)
    assert speed["figure"] == "tcp in TLS: GB/s"
    assert cpu["reach"] == "beside tcp as it is"
