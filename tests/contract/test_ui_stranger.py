"""`neuron-dra ui` and a second user of the machine, who can connect to its port and list its files (37, security)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.ask.ui import opening, session
from tests.support import small_clusters as small

STRANGER = 65534
"""The uid of nobody."""
LOOKS = r"""
import glob, http.client, json, os, sys

host, port, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def asked(path, **headers):
    connection = http.client.HTTPConnection(host, port, timeout=120)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return [answer.status, answer.read().decode()]

def text(path):
    try:
        with open(path, "rb") as opened:
            return opened.read().decode(errors="replace")
    except OSError as err:
        return type(err).__name__

own = {"Sec_Fetch_Site": "same-origin"}
about = "/api/about?kind=Node&namespace=&name=a"
arguments = "".join(text(path) for path in glob.glob("/proc/[0-9]*/cmdline"))
listed = text(os.path.dirname(file) + "/open.html")
print(json.dumps({
    "uid": os.getuid(), "file": text(file), "listed": listed, "arguments": arguments,
    "bare": asked(about), "forged": asked(about, **own), "guessed": asked(about, **own, Authorization="Bearer x" * 5),
    "stream": asked("/api/stream", **own), "page": asked("/"),
}))
"""
"""What a stranger tries, with the interpreter alone."""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may run as another user")
async def test_a_second_user_of_the_machine_learns_nothing() -> None:
    made = session.of_file(small.cluster(small.base("a")), "secret-cluster.json")
    async with made.served() as server:
        with opening.redirecting(opening.address(server.host, made.token)) as file:
            assert made.token in file.read_text()
            found = await as_stranger(*server.host.split(":"), str(file))
    assert found["uid"] == STRANGER
    assert (found["file"], found["listed"]) == ("PermissionError", "PermissionError")
    assert [found[each][0] for each in ("bare", "forged", "guessed", "stream", "page")] == [403, 401, 401, 401, 200]
    assert made.token not in json.dumps(found)
    assert "secret-cluster" not in json.dumps({name: found[name] for name in found if name != "arguments"})


async def as_stranger(*arguments: str) -> Any:
    """Return what the program above finds as another user."""
    python = Path("/usr/bin/python3") if Path("/usr/bin/python3").exists() else Path(sys.executable)
    program = await asyncio.create_subprocess_exec(
        python, "-I", "-S", "-c", LOOKS, *arguments,
        user=STRANGER, group=STRANGER, extra_groups=[], cwd="/",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await program.communicate()
    assert program.returncode == 0, err.decode()
    return json.loads(out)
