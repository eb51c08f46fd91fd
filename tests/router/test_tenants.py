"""Tenants: who may ask, and who shares with whom."""

import hashlib
from pathlib import Path

import pytest

from tests.router.fakes import FakeAgent
from tests.router.serving import COMPLETIONS, ask, chat, request, run, serving
from trunkline.router.tenants import Tenants, load_tenants
from trunkline.shared.errors import ConfigError, RequestError

SECRET = "0123456789abcdef"


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tenants:
    monkeypatch.setenv("B_KEY", "key-b")
    (tmp_path / "c").write_text("key-c\n")
    file = tmp_path / "tenants.toml"
    file.write_text(
        f"""
        [tenants.a]
        keys = ["{digest("key-a")}", "{digest("key-a2")}"]
        [tenants.b]
        keys = ["env:B_KEY"]
        share = "friends"
        [tenants.c]
        keys = ["file:{tmp_path / "c"}"]
        share = "friends"
        """
    )
    return load_tenants(file, SECRET)


def test_without_a_file_everybody_is_one_tenant() -> None:
    tenant = Tenants().authenticate(None)
    assert tenant is Tenants().authenticate(b"Bearer anything") or tenant.salt == ""
    assert (tenant.headers, tenant.forwards_credentials) == (b"", True)


def test_keys_decide_the_tenant_and_groups_share_a_salt(tenants: Tenants) -> None:
    a, a2, b, c = (tenants.authenticate(f"Bearer key-{name}".encode()) for name in ("a", "a2", "b", "c"))
    assert a is a2
    assert a.salt != b.salt == c.salt
    assert len(a.salt) == 16
    assert b.headers == f"x-trunkline-salt: {b.salt}\r\nx-trunkline-cluster: {SECRET}\r\n".encode()
    assert not a.forwards_credentials


@pytest.mark.parametrize(
    "authorization", [None, b"", b"Bearer", b"Bearer key-z", b"Basic key-a", b"key-a", b"Bearer \xff"]
)
def test_unknown_keys_are_refused(tenants: Tenants, authorization: bytes | None) -> None:
    for _ in range(2):
        with pytest.raises(RequestError) as refused:
            tenants.authenticate(authorization)
        assert refused.value.status == 401


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tenants = 3", "tenants"),
        ("[tenants.a]\nkeyz = []", "keyz"),
        ('[tenants.a]\nkeys = ["sha256:12"]', "tenants.a"),
        ('[tenants.a]\nkeys = ["plain"]', "tenants.a"),
        ('[tenants.a]\nkeys = ["env:NOT_SET_ANYWHERE"]', "NOT_SET_ANYWHERE"),
        ('[tenants.a]\nkeys = ["file:/nowhere"]', "/nowhere"),
        (f'[tenants.a]\nkeys = ["{digest("k")}"]\n[tenants.b]\nkeys = ["{digest("k")}"]', "tenants.a"),
        ("not toml", "tenants.toml"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, names: str) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=names):
        load_tenants(file, SECRET)


def test_tenants_need_a_cluster_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cluster secret"):
        load_tenants(tmp_path / "tenants.toml", None)


def test_credentials_stop_at_the_router_and_salts_do_not_mix(tenants: Tenants) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], tenants=tenants) as served:
            prompt = chat("a long prompt " * 100)
            matched = {}
            for key in ("a", "b", "c", "a"):
                headers = [f"Authorization: Bearer key-{key}", "x-trunkline-salt: 00"]
                reply = await ask(served.port, request(body=prompt, headers=headers))
                matched[key] = int(reply.headers["x-trunkline-matched-tokens"])
                received = agent.requests[-1].headers
                assert "authorization" not in received
                expected = tenants.authenticate(f"Bearer key-{key}".encode())
                assert received["x-trunkline-salt"] == expected.salt
                assert received["x-trunkline-cluster"] == SECRET
                if key == "b":
                    assert matched["b"] == 0  # What "a" sent is nobody else's.
            assert matched["c"] > 0
            assert matched["a"] > 0
            refused = await ask(served.port, request(COMPLETIONS, b"{", headers=["Authorization: Bearer no"]))
            assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
            assert (await ask(served.port, request("/v1/models", b"", method="GET"))).status == 401
            assert served.idle()

    run(scenario())
