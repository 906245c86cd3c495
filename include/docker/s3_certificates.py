"""Draw the certificates by which the parts of the S3 server know each other; kept once drawn.

Run by docker-compose.yaml before the S3 server: a running one must not find others.
"""

from __future__ import annotations

import sys
from pathlib import Path

from waybill.stack import certificates

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if not (folder / certificates.KEY).exists():  # it is written last
        certificates.draw(folder)
