"""A small REST API to try sources with: 1,000 issues in pages of 100, by time of change.

``python issues_api.py 8081`` serves ``GET /issues?since=<RFC 3339>&page=<number>`` on loopback, the
next page in the header ``Link``. ``POST /issues/<id>`` closes an issue.
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

PAGE, ISSUES, BEGIN = 100, 1_000, datetime(2024, 1, 1, tzinfo=UTC)


def text(moment: datetime) -> str:
    """Return a time as GitHub writes it."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def issue(number: int, changed_at: datetime, state: str) -> dict[str, object]:
    """Return one issue as it is sent."""
    by = {"login": f"user{number % 7}"}
    return {
        "id": number,
        "title": f"Issue {number}",
        "state": state,
        "updated_at": text(changed_at),
        "user": by,
    }


issues = {n: issue(n, BEGIN + timedelta(hours=n), "open") for n in range(1, ISSUES + 1)}


class Api(BaseHTTPRequestHandler):
    """Answers requests."""

    def do_GET(self) -> None:
        """Send a page of what changed since."""
        url = urlsplit(self.path)
        asked = dict(parse_qsl(url.query))
        page = int(asked.get("page", "1"))
        since = asked.get("since", "")
        found = [one for one in issues.values() if str(one["updated_at"]) >= since]
        found.sort(key=lambda one: str(one["updated_at"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if len(found) > page * PAGE:
            later = urlencode({**asked, "page": page + 1})
            host = self.headers["Host"]
            self.send_header("Link", f'<http://{host}{url.path}?{later}>; rel="next"')
        self.end_headers()
        self.wfile.write(json.dumps(found[(page - 1) * PAGE : page * PAGE]).encode())

    def do_POST(self) -> None:
        """Close an issue now."""
        number = int(self.path.rpartition("/")[2])
        issues[number] = issue(number, datetime.now(UTC), "closed")
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
