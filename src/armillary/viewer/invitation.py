"""Open the viewer in a browser without its token on a command line, which `ps` shows to other users.

The browser opens a file that only this user can read. It redirects to the viewer with a code after '#', which is in no
request and no log; the page exchanges the code for the token, once.
"""

import hmac
import json
import os
from pathlib import Path

from armillary.figures.policy import content_policy
from armillary.machine.temporary import remove_folder, temporary_folder
from armillary.viewer.guard import new_token

PAGE = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta http-equiv="Content-Security-Policy" content="{policy}">
    <meta name="referrer" content="no-referrer">
    <title>Armillary</title>
  </head>
  <body>
    <p>The viewer opens here. If it does not, copy the address that <code>armillary view</code> printed.</p>
    <script>{script}</script>
  </body>
</html>
"""


class Invitation:
    """A file that opens the viewer at `place` once; removed when its code is used, or when the program ends."""

    def __init__(self, place: str) -> None:
        self._code = new_token()
        self._folder = temporary_folder()
        self.file = self._folder / "viewer.html"
        script = f"location.replace({json.dumps(f'{place}#code={self._code}')})"  # so that 'back' skips it
        _write_privately(self.file, PAGE.format(policy=content_policy([script]), script=script))

    def accepts(self, code: str) -> bool:
        """Whether this is the code, which is valid once."""
        if not self._code or not hmac.compare_digest(code.encode("utf-8", "replace"), self._code.encode()):
            return False
        self._code = ""
        remove_folder(self._folder)
        return True


def _write_privately(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
