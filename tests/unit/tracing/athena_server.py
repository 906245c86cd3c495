"""A server that speaks as much of Athena's JSON protocol as look-ups use; it runs no SQL."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TYPES = {"kafka_partition": "integer", "attempt": "integer", "intake_minute": "integer"}
TYPES |= {"kafka_offset": "bigint", "commit_number": "bigint", "at": "timestamp"}


class AthenaServer:
    """Answers every query with the same rows, after some polls; keeps what it was asked."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[Any]] = ()) -> None:
        self.names, self.rows = names, rows
        self.page = 1000
        self.states = ["QUEUED", "RUNNING", "SUCCEEDED"]
        self.reason = ""
        self.started: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self.keys: set[str] = set()
        """Access keys that signed what was asked."""
        self._polls: dict[str, int] = {}
        server = self

        class _Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                signed = self.headers["Authorization"].partition("Credential=")[2]
                server.keys.add(signed.partition("/")[0])
                action = self.headers["X-Amz-Target"].partition(".")[2]
                body = json.dumps(getattr(server, action)(asked)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def StartQueryExecution(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.started.append(asked)
        return {"QueryExecutionId": f"query-{len(self.started)}"}

    def GetQueryExecution(self, asked: dict[str, Any]) -> dict[str, Any]:
        query_id = asked["QueryExecutionId"]
        polls = self._polls[query_id] = self._polls.get(query_id, 0) + 1
        state = self.states[min(polls, len(self.states)) - 1]
        if query_id in self.stopped:
            state = "CANCELLED"
        return {
            "QueryExecution": {
                "QueryExecutionId": query_id,
                "Query": "SELECT",
                "StatementType": "DML",
                "Status": {"State": state, "StateChangeReason": self.reason},
                "Statistics": {"DataScannedInBytes": 1000 * min(polls, len(self.states))},
                "ResultConfiguration": {"OutputLocation": f"s3://results/{query_id}.csv"},
            }
        }

    def StopQueryExecution(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.stopped.append(asked["QueryExecutionId"])
        return {}

    def GetQueryResults(self, asked: dict[str, Any]) -> dict[str, Any]:
        start = int(asked.get("NextToken", 0))
        rows = [self.names, *self.rows][start : start + self.page]
        columns = [{"Name": name, "Type": TYPES.get(name, "varchar")} for name in self.names]
        answer: dict[str, Any] = {
            "ResultSet": {
                "Rows": [{"Data": [_cell(value) for value in row]} for row in rows],
                "ResultSetMetadata": {"ColumnInfo": columns},
            }
        }
        if start + self.page <= len(self.rows):
            answer["NextToken"] = str(start + self.page)
        return answer


def _cell(value: Any) -> dict[str, str]:
    return {} if value is None else {"VarCharValue": str(value)}
