"""How far a preparation is, in one SQLite file: every document seen, and a place in the source and in the shards.

Both are committed together, so after a kill they agree, and the shards are cut back to the length they had then.
The hashes of the documents are on disk, in a B-tree of about 35 bytes each, so memory does not grow with the corpus.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scaling.data.shards import SPLITS, Shard, Split

CACHE_KIB = 65_536


def _per_split() -> dict[Split, int]:
    return dict.fromkeys(SPLITS, 0)


@dataclass
class Place:
    """Where a preparation is."""

    source: dict[str, Any]
    """Description of the source it reads (`Source.description`)."""
    tokenizer_hash: str = ""
    """Empty before there is a tokenizer."""
    parts: dict[Split, int] = field(default_factory=_per_split)
    """Parts of the source read to the end."""
    rows: int = 0
    """Documents read of the part after those."""
    shards: dict[Split, list[Shard]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    """Finished shards."""
    open_tokens: dict[Split, int] = field(default_factory=_per_split)
    """Tokens in the shard after those."""
    documents: dict[Split, int] = field(default_factory=_per_split)
    text_bytes: dict[Split, int] = field(default_factory=_per_split)
    duplicates: int = 0
    skipped: int = 0


class ProgressFile:
    """The file; one process at a time."""

    def __init__(self, path: Path):
        """Open or make it."""
        self._database = sqlite3.connect(path, isolation_level=None)
        for setting in (f"cache_size = -{CACHE_KIB}", "locking_mode = EXCLUSIVE", "synchronous = NORMAL"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("BEGIN")
        self._database.execute("CREATE TABLE IF NOT EXISTS seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("CREATE TABLE IF NOT EXISTS place (id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT)")

    def load(self) -> Place | None:
        """The place of the last commit, None if there was none."""
        row = self._database.execute("SELECT json FROM place").fetchone()
        if row is None:
            return None
        value = json.loads(row[0])
        value["shards"] = {split: [Shard(**shard) for shard in value["shards"][split]] for split in SPLITS}
        return Place(**value)

    def is_new(self, digest: bytes) -> bool:
        """Note the hash of a document; False if it was seen before."""
        return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 1

    def commit(self, place: Place) -> None:
        """Make the place, and every document noted so far, the ones to go on from."""
        self._database.execute("REPLACE INTO place VALUES (0, ?)", (json.dumps(asdict(place)),))
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")

    def close(self) -> None:
        """Close the file; what was not committed is forgotten."""
        self._database.close()
