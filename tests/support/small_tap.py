"""A Singer tap of the tests: rows 1 to ``rows`` of stream ``orders``, a STATE after each ten.

``die_at``: SIGKILL itself before that row, the first time. ``child``: start a process that lasts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def say(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")


def main() -> None:
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    config = json.loads(Path(given["--config"]).read_text())
    mode = Path(given["--config"]).stat().st_mode & 0o777
    properties = {
        "id": {"type": ["null", "integer"]},
        "at": {"type": "string", "format": "date-time"},
        "note": {"type": ["null", "string"]},
    }
    schema = {"type": "object", "properties": properties}
    if "--discover" in sys.argv:
        streams = [
            {
                "tap_stream_id": name,
                "stream": name,
                "schema": schema,
                "key_properties": ["id"],
                "metadata": [{"breadcrumb": [], "metadata": {"inclusion": "available"}}],
            }
            for name in ("orders", "others")
        ]
        json.dump({"streams": streams}, sys.stdout)
        return
    print(f"began with {config.get('token')} mode {mode:o}", file=sys.stderr)
    print("environment " + ",".join(sorted(os.environ)), file=sys.stderr, flush=True)
    state = json.loads(Path(given["--state"]).read_text()) if "--state" in given else {"id": 0}
    if config.get("child"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "read" in config:
        try:
            Path(config["read"]).read_text()
        except OSError as error:
            print(f"refused: {error.strerror}", file=sys.stderr, flush=True)
    selected = [
        one["stream"]
        for one in json.loads(Path(given["--catalog"]).read_text())["streams"]
        if one["metadata"][0]["metadata"].get("selected")
    ]
    for stream in selected:
        say(type="SCHEMA", stream=stream, schema=schema, key_properties=["id"])
        for number in range(state["id"] + 1, config["rows"] + 1):
            if number == config.get("die_at") and not state["id"]:
                sys.stdout.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            record = {"id": number, "at": "2024-01-01T00:00:00Z", "note": "x" * 10}
            say(type="RECORD", stream=stream, record=record)
            if number % 10 == 0:
                say(type="STATE", value={"id": number})
                sys.stdout.flush()
        say(type="ACTIVATE_VERSION", stream=stream, version=1)
    sys.stdout.flush()
    time.sleep(config.get("linger", 0))


if __name__ == "__main__":
    main()
