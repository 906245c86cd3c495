"""Consul 1.14.11 on loopback, with a data folder and ACLs.

``make consul`` builds it: the main module's ``replace`` lines point into its own repository, so Go
refuses ``go install``; required by a module of ours they are passed over, and the versions that its
``require`` lines name are taken. All is pinned by ``consul_module``. Later releases require
submodules that the module proxy does not have.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import httpx
from tests.servers import CHECKOUT

from waybill.stack import free_port

FOLDER = CHECKOUT / ".waybill" / "consul"
VERSION = "1.14.11"
_MODULE = Path(__file__).with_name("consul_module")
_WAIT_S = 600.0


def why_not() -> str | None:
    """Return why Consul cannot be started, with what helps; None: it can."""
    if (FOLDER / "consul").exists():
        return None
    return f"Consul {VERSION} is not in {FOLDER}: make consul (needs Go, and minutes)"


def fetch() -> None:
    """Build it, if it is not there. Cost: ten minutes of CPU, 4 GB in Go's caches."""
    if why_not() is None:
        return
    go = shutil.which("go")
    if go is None:
        raise SystemExit(f"Consul {VERSION} is built by Go 1.20 or newer, and there is none")
    scratch = FOLDER / ".module"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(_MODULE, scratch)
    words = [go, "build", "-trimpath", "-o", "consul", "github.com/hashicorp/consul"]
    subprocess.run(words, cwd=scratch, env={**os.environ, "GOFLAGS": "-mod=mod"}, check=True)
    (scratch / "consul").replace(FOLDER / "consul")
    shutil.rmtree(scratch)


class Consul:
    """One server; what anonymous clients ask for is refused.

    Args:
        home: of its data, configuration and log.
    """

    def __init__(self, home: Path) -> None:
        self._home, self.token = home, str(uuid.uuid4())
        ports = [free_port() for _ in range(4)]
        self.url = f"http://127.0.0.1:{ports[0]}"
        own = {
            "server": True,
            "bootstrap_expect": 1,
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "data_dir": str(home / "data"),
            "ports": {
                "http": ports[0], "server": ports[1], "serf_lan": ports[2], "serf_wan": ports[3],
                "dns": -1, "grpc": -1, "grpc_tls": -1,
            },
            "connect": {"enabled": False},
            "disable_update_check": True,
            "acl": {
                "enabled": True,
                "default_policy": "deny",
                "tokens": {"initial_management": self.token},
            },
        }  # fmt: skip
        home.mkdir(parents=True, exist_ok=True)
        (home / "consul.json").write_text(json.dumps(own))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes writes."""
        words = [str(FOLDER / "consul"), "agent", f"-config-file={self._home}/consul.json"]
        with (self._home / "consul.log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + _WAIT_S
        while not self._takes_writes():
            assert time.monotonic() < until, (self._home / "consul.log").read_text()[-2000:]
            time.sleep(0.2)

    def _takes_writes(self) -> bool:
        try:
            return self.ask("PUT", "ready", "1").is_success
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """SIGKILL it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, method: str, key: str, text: str = "") -> httpx.Response:
        """Put or delete a key."""
        headers = {"X-Consul-Token": self.token}
        with httpx.Client(headers=headers, timeout=60, trust_env=False) as client:
            return client.request(method, f"{self.url}/v1/kv/{key}", content=text)


if __name__ == "__main__":
    fetch()
