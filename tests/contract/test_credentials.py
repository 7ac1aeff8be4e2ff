"""Expiring credentials: renewed before they expire, and after a 401; read again when their files change."""

from __future__ import annotations

import asyncio
import calendar
import itertools
import os
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_dra.api.objects import node_object
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.errors import ApiError, Forbidden, SettingsError
from neuron_dra.kube import certificates, config, kubeconfig
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.credentials import Credentials, Proof
from neuron_dra.kube.requests import NODES
from neuron_dra.kube.timing import CredentialTiming
from tests.support.logins import Authority, Login, write_kubeconfig
from tests.support.timings import quicker
from tests.support.waiting import eventually

LOOKING = quicker(CredentialTiming(), look_s=0.05)
ALWAYS_DUE = quicker(LOOKING, ahead_share=1.0)  # credentials of a short life are renewed as soon as they are in use


async def client_of(path: Path | str, timing: CredentialTiming = LOOKING) -> KubeClient:
    return KubeClient(await asyncio.to_thread(config.from_kubeconfig, path, timing=timing))


async def ask(client: KubeClient) -> bool:
    """Return True if both kinds of requests succeed."""
    try:
        await client.get(NODES, "", "node-a")
        return bool([page async for page in client.list(NODES)])
    except ApiError:
        return False


@pytest.fixture
def login(api: EmbeddedApi, tmp_path: Path) -> Login:
    return Login(tmp_path, api.url)


# A login program.


async def test_token_is_renewed_before_expiry(api: EmbeddedApi, login: Login) -> None:
    """14.8: no request meets a 401."""
    api.require_tokens("one", "two")
    login.gives_token("one", life_s=20)
    client = await client_of(login.kubeconfig, ALWAYS_DUE)
    login.gives_token("two", life_s=900)
    async with client:
        assert await ask(client)
        await eventually(lambda: client._config.proof.token() == "two", what="the renewal")  # type: ignore[misc]
        api.require_tokens("two")
        assert await ask(client)
    assert (login.calls, {request.status for request in api.log}) == (2, {200})


@pytest.mark.parametrize("life_s", [0, 900])
async def test_rejected_token_is_replaced_within_the_call(api: EmbeddedApi, login: Login, life_s: int) -> None:
    """14.8: the clocks differ, or the token has no expiration time."""
    api.require_tokens("one")
    login.gives_token("one", life_s=life_s)
    async with await client_of(login.kubeconfig) as client:
        assert await ask(client)
        login.gives_token("two", life_s=life_s)
        api.require_tokens("two")
        assert await ask(client)
    assert login.calls == 2


async def test_rejected_watch_renews_credentials(api: EmbeddedApi, login: Login) -> None:
    api.require_tokens("one")
    login.gives_token("zero")
    async with await client_of(login.kubeconfig) as client:
        login.gives_token("one")
        with pytest.raises(Forbidden):
            async with client.watch(NODES, "", {}, idle_timeout_s=120):
                pass
        async with client.watch(NODES, "", {}, idle_timeout_s=120):
            pass


async def test_permanent_401_limits_login_runs(api: EmbeddedApi, login: Login) -> None:
    timing = quicker(LOOKING, rejected_s=(600.0, 600.0))  # more than a slow machine needs
    api.require_tokens("another")
    login.gives_token("one")
    async with await client_of(login.kubeconfig, timing) as client:
        assert [await ask(client) for _ in range(10)] == [False] * 10
    assert login.calls == 2


async def test_concurrent_401s_log_in_once(api: EmbeddedApi, login: Login) -> None:
    api.require_tokens("two")
    login.gives_token("one")
    async with await client_of(login.kubeconfig) as client:
        login.gives_token("two")
        assert await asyncio.gather(*(ask(client) for _ in range(8))) == [True] * 8
    assert login.calls == 2


async def test_failing_login_keeps_the_credentials(
    api: EmbeddedApi, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    api.require_tokens("one")
    login.gives_token("one", life_s=1)
    async with await client_of(login.kubeconfig) as client:
        login.fails()
        await eventually(lambda: "could not be renewed" in caplog.text, what="the failure")
        assert await ask(client)


async def test_hanging_login_program_is_ended(login: Login, tmp_path: Path) -> None:
    program = tmp_path / "login"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    with pytest.raises(SettingsError, match="the login took more than 3 s"):
        await kubeconfig.read_again(str(login.kubeconfig), limit_s=3.0)
    if (tmp_path / "pid").exists():  # it got as far as that
        pid = (tmp_path / "pid").read_text().strip()
        await eventually(lambda: not _is_running(pid), what="the end of the login program")


def _is_running(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Certificates.


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    return Authority(tmp_path / "pki")


@pytest.fixture
async def https(authority: Authority) -> AsyncIterator[EmbeddedApi]:
    """An API server that authenticates users by certificates."""
    async with EmbeddedApi(controllers=False, tls=authority.server_context()) as server:
        server.create(node_object("node-a"))
        server.require_certificates()
        yield server


async def test_login_certificate_is_renewed_before_expiry(
    https: EmbeddedApi, authority: Authority, tmp_path: Path
) -> None:
    """14.8."""
    login = Login(tmp_path, https.url, ca=authority.certificate)
    login.gives_certificate(*authority.issue("one", life_s=60))
    client = await client_of(login.kubeconfig, ALWAYS_DUE)
    login.gives_certificate(*authority.issue("two"))
    async with client:
        await eventually(lambda: login.calls == 2, what="the renewal")
        await eventually(lambda: client._config.credentials.number == 1, what="its end")  # type: ignore[union-attr]
        assert await ask(client)
    assert {request.status for request in https.log} == {200}


async def test_expired_certificate_is_replaced_within_the_call(
    https: EmbeddedApi, authority: Authority, tmp_path: Path
) -> None:
    """Connections with the old certificate are not used again, because the API server checks each request."""
    login = Login(tmp_path, https.url, ca=authority.certificate)
    login.gives_certificate(*authority.issue("old", life_s=-5, begin_s=-60))
    async with await client_of(login.kubeconfig) as client:
        login.gives_certificate(*authority.issue("new"))
        assert await ask(client)


async def test_certificates_in_files_are_read_again(https: EmbeddedApi, authority: Authority, tmp_path: Path) -> None:
    """14.8: the kubelet's certificate is replaced daily."""
    crt, key = (Path(shutil.copy(file, tmp_path)) for file in authority.issue("one"))
    user = {"client-certificate": crt.name, "client-key": key.name}
    path = write_kubeconfig(tmp_path / "kubeconfig", https.url, user, ca=authority.certificate)
    async with await client_of(path) as client:
        assert await ask(client)
        fresh = authority.issue("two")
        for source, target in zip(fresh, (crt, key), strict=True):
            os.rename(shutil.copy(source, tmp_path / "fresh"), target)
        end = certificates.not_after(fresh[0].read_text())
        await eventually(lambda: client._config.proof.expires == end, what="the new certificate")
        assert await ask(client)


async def test_replaced_authority_is_read_again(https: EmbeddedApi, authority: Authority, tmp_path: Path) -> None:
    """14.8: in a cluster, and with a kubeconfig."""
    other = Authority(tmp_path / "other", "other")
    (tmp_path / "token").write_text("one")
    ca = Path(shutil.copy(authority.certificate, tmp_path / "ca.crt"))
    https.require_tokens("one")
    host, _, port = https.url.removeprefix("https://").partition(":")
    inside = config.in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, tmp_path, LOOKING)
    path = write_kubeconfig(tmp_path / "kubeconfig", https.url, {"token": "one"}, ca=ca)
    async with KubeClient(inside) as pod, await client_of(path) as person:
        assert (await ask(pod), await ask(person)) == (True, True)
        await https.refuse_connections()
        https.tls = other.server_context()
        await https.resume()
        assert (await ask(pod), await ask(person)) == (False, False)
        os.rename(shutil.copy(other.certificate, tmp_path / "fresh"), ca)
        for client in (pod, person):
            async with asyncio.timeout(60):
                while not await ask(client):
                    await asyncio.sleep(0.05)


async def test_several_kubeconfigs_are_one(https: EmbeddedApi, authority: Authority, tmp_path: Path) -> None:
    """As kubectl reads KUBECONFIG=a:b, in which some files may be missing."""
    https.require_tokens("one")
    whole = write_kubeconfig(tmp_path / "whole", https.url, {"token": "one"}, ca=authority.certificate).read_text()
    (tmp_path / "a").write_text(whole.partition("users:")[0])
    (tmp_path / "b").write_text("kind: Config\nusers:" + whole.partition("users:")[2])
    async with await client_of(f"{tmp_path}/a:{tmp_path}/none:{tmp_path}/b") as client:
        assert await ask(client)
    with pytest.raises(SettingsError, match="no such file"):
        config.from_kubeconfig(f"{tmp_path}/none:{tmp_path}/neither")


async def test_another_api_server_is_no_renewal(api: EmbeddedApi, tmp_path: Path) -> None:
    path = api.write_kubeconfig(tmp_path / "config", token="one")
    loaded = await asyncio.to_thread(config.from_kubeconfig, path)
    path.write_text(path.read_text().replace(api.url, "http://127.0.0.1:1"))
    assert loaded.credentials is not None
    assert not await loaded.credentials.refused(0)
    assert (loaded.url, loaded.credentials.number) == (api.url, 0)


def test_the_end_of_a_certificate(authority: Authority, tmp_path: Path) -> None:
    crt, _ = authority.issue("one", life_s=1234)
    read = ssl._ssl._test_decode_cert(str(crt))["notAfter"]  # type: ignore[attr-defined]  # the standard library's own parser
    assert certificates.not_after(crt.read_text()) == calendar.timegm(time.strptime(read, "%b %d %H:%M:%S %Y %Z"))
    assert [
        certificates.not_after(text) for text in ("", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----")
    ] == [0, 0]


# When.


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_login_runs_back_off_on_rejected_tokens() -> None:
    """Its tokens are always new and always rejected: the pause grows to five minutes."""
    clock, read = Clock(), []

    async def fresh() -> Proof:
        read.append(clock.now)
        return Proof(expires=clock.now + 900)

    kept = Credentials(await fresh(), fresh, clock)
    for _ in range(3600):
        clock.now += 1
        await kept.refused(kept.number)
    assert 12 <= len(read) <= 40
    assert min(later - before for before, later in itertools.pairwise(read[10:])) >= 150
