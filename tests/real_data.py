"""Where the real graphs lie that some tests use: UNIFEWS_DATA, or the shared folder beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ.get("UNIFEWS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
