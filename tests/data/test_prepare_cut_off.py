"""A preparation that is killed, or has no room, or is not alone, ends with the bytes of one that was left in peace."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from data_corpora import documents
from pyarrow import parquet

from scaling.config import DataConfig
from scaling.data.prepare import PROGRESS_FILE, prepare
from scaling.data.progress import ProgressFile
from scaling.data.shards import Index
from scaling.errors import DataError

SHARD_TOKENS = 300_000
SCRIPT = """
import resource, sys
from scaling.config import DataConfig
from scaling.data import corpus_writer
from scaling.data.prepare import prepare
from scaling.errors import DataError
corpus_writer.COMMIT_BYTES = 150_000
folder, data, file_limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
config = DataConfig(
    "test",
    train_files=[folder + "/*.parquet"],
    vocab_size=400,
    validation_fraction=0.1,
    bpe_bytes=200_000,
)
try:
    prepare(config, data, progress=False, shard_tokens=int(sys.argv[4]))
except DataError as error:
    sys.exit(str(error))
"""


class Corpus:
    """Three files of text, with duplicates across them, and what a preparation left in peace makes of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        texts = documents(12_000)
        for i in range(3):
            part = texts[i * 4000 : (i + 1) * 4000] + texts[: 500 * i]
            parquet.write_table(pa.table({"text": part}), folder / f"{i}.parquet")
        self.config = DataConfig(
            "test",
            train_files=[str(folder / "*.parquet")],
            vocab_size=400,
            validation_fraction=0.1,
            bpe_bytes=200_000,
        )
        self.index = prepare(self.config, folder / "peace", progress=False, shard_tokens=SHARD_TOKENS)

    def start(self, data: Path, file_limit: int = -1) -> subprocess.Popen[str]:
        arguments = [str(self.folder), str(data), str(file_limit), str(SHARD_TOKENS)]
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def assert_same(self, data: Path) -> None:
        """Compare every byte of a folder with the one left in peace."""
        folder = data / self.config.folder_name
        assert Index.read(folder).to_json() == self.index.to_json()
        names = {path.name for path in self.index.folder.iterdir()}
        assert {path.name for path in folder.iterdir()} == names
        for name in names:
            assert (folder / name).read_bytes() == (self.index.folder / name).read_bytes(), name


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


def written(folder: Path) -> int:
    """Bytes of tokens in a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.bin"))


def has_written(folder: Path, size: float) -> bool:
    return written(folder) >= size


def documents_committed(folder: Path) -> int:
    with contextlib.closing(ProgressFile(folder / PROGRESS_FILE)) as file:
        place = file.load()
    return sum(place.documents.values()) if place else 0


def kill_when(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not reached():
        assert process.poll() is None, f"it ended before it was killed: {process.communicate()}"
        time.sleep(0.001)
    process.kill()
    process.communicate()


def test_killed_at_any_moment_ends_with_the_same_bytes(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / corpus.config.folder_name
    total = written(corpus.index.folder)
    assert len(corpus.index.shards["train"]) > 3

    kill_when((folder / PROGRESS_FILE).exists, corpus.start(tmp_path))
    kill_when((folder / "tokenizer.json").exists, corpus.start(tmp_path))
    committed = [0]
    for size in (0.05 * total, 0.3 * total, 0.5 * total, 0.55 * total, 0.8 * total):
        kill_when(partial(has_written, folder, size), corpus.start(tmp_path))
        assert not (folder / "index.json").exists()
        committed.append(documents_committed(folder))
    assert committed == sorted(committed), "a preparation that goes on has to go on from the one before"
    assert committed[-1] > 0.5 * sum(corpus.index.documents.values())

    last = corpus.start(tmp_path)
    assert last.communicate() == ("", "")
    assert last.returncode == 0
    corpus.assert_same(tmp_path)


def test_tokens_beyond_the_last_commit_are_dropped(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / corpus.config.folder_name
    kill_when(partial(has_written, folder, 1_000_000), corpus.start(tmp_path))
    newest = max(folder.glob("train_*.bin"))
    with open(newest, "ab") as file:
        file.write(b"\x07" * 4 * SHARD_TOKENS)
    (folder / f"train_{int(newest.stem[-5:]) + 1:05d}.bin").write_bytes(b"\x07" * 12_345)
    assert corpus.start(tmp_path).wait() == 0
    corpus.assert_same(tmp_path)


def test_no_room_left_loses_nothing(corpus: Corpus, tmp_path: Path) -> None:
    process = corpus.start(tmp_path, file_limit=400_000)
    _, said = process.communicate()
    assert process.returncode == 1
    assert "cannot be written (File too large): make room" in said
    assert len(said.splitlines()) == 1
    assert documents_committed(tmp_path / corpus.config.folder_name) > 0
    assert corpus.start(tmp_path).wait() == 0
    corpus.assert_same(tmp_path)


def test_two_at_once_do_not_get_in_each_others_way(corpus: Corpus, tmp_path: Path) -> None:
    both = [corpus.start(tmp_path) for _ in range(2)]
    said = "".join(process.communicate()[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said in ("", f"another process prepares {tmp_path / corpus.config.folder_name}: waiting for it\n")
    corpus.assert_same(tmp_path)


def test_the_second_waits_for_the_first(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / corpus.config.folder_name
    folder.mkdir()
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = corpus.start(tmp_path)
        assert process.stdout is not None
        assert "waiting for it" in process.stdout.readline()
        assert [path.name for path in folder.iterdir()] == ["lock"]
    assert process.wait() == 0
    process.communicate()
    corpus.assert_same(tmp_path)


def test_a_folder_without_locks_is_named(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> NoReturn:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("scaling.data.prepare.fcntl.flock", flock)
    with pytest.raises(DataError, match=r"is on a file system that has no locks: choose another data folder"):
        prepare(corpus.config, tmp_path, progress=False)


def test_an_unfinished_folder_is_not_continued_with_other_files(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / corpus.config.folder_name
    kill_when(partial(has_written, folder, 1_000_000), corpus.start(tmp_path))
    other = DataConfig(**{**vars(corpus.config), "train_files": [str(corpus.folder / "0.parquet")]})
    assert other.folder_name == corpus.config.folder_name
    with pytest.raises(DataError, match="was prepared from other files"):
        prepare(other, tmp_path, progress=False)


@pytest.mark.parametrize("name", [PROGRESS_FILE, "train_00000.bin"])
def test_damaged_progress_is_named(corpus: Corpus, tmp_path: Path, name: str) -> None:
    folder = tmp_path / corpus.config.folder_name
    kill_when(partial(has_written, folder, 600_000), corpus.start(tmp_path))
    (folder / name).write_bytes(b"neither progress nor tokens" * 100)
    if name == PROGRESS_FILE:
        (folder / f"{PROGRESS_FILE}-journal").unlink(missing_ok=True)  # or SQLite would mend the file with it
    with pytest.raises(DataError, match=rf"{name}.* delete .* and prepare again"):
        prepare(corpus.config, tmp_path, progress=False, shard_tokens=SHARD_TOKENS)
