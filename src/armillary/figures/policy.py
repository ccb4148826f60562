"""The content security policy of written pages: they may run their own scripts and nothing else."""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any


def content_policy(scripts: Sequence[str]) -> str:
    """A content security policy: no network, and no script but these, by their hashes."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def embedded(data: Any) -> str:
    """JSON for a script element: '<' is escaped, so nothing can end or open an element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
