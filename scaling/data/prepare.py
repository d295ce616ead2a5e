"""Text to token shards, in one call that can be killed at any moment and goes on when it is given again."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from rich import progress as bars

from scaling.config import DataConfig
from scaling.data.corpus_writer import CorpusWriter, training_text
from scaling.data.progress import Place, ProgressFile
from scaling.data.shards import SPLITS, Index
from scaling.data.sources import Source, open_source
from scaling.data.tokenizer import PublishedTokenizer, Tokenizer, TrainedTokenizer
from scaling.errors import DataError
from scaling.records import NO_LOCKS

SHARD_TOKENS = 100_000_000
PROGRESS_FILE = "progress.sqlite"


def prepare(
    config: DataConfig, data_folder: str | Path, progress: bool = True, shard_tokens: int = SHARD_TOKENS
) -> Index:
    """Make the token shards of a corpus, or check them if they are there.

    A call that was cut off is taken up where it was; the bytes are those of one that never was. A second call at the
    same time waits for the first. Memory stays below 1 GiB for any corpus size.

    Args:
        config: the corpus.
        data_folder: where corpora's folders are.
        progress: show a progress bar and print a summary.
        shard_tokens: tokens in a shard, the last one of a split excepted.

    Returns:
        The index, as index.json has it.

    Raises:
        DataError: text is missing, damaged, empty or too little, the folder holds tokens of other text or cannot be
            written, or a shard is damaged.
    """
    folder = Path(data_folder) / config.folder_name
    with _output_errors(folder):
        index = _finished(config, folder)
        if index is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder):
                index = _finished(config, folder) or _prepare(config, folder, progress, shard_tokens)
    if progress:
        print(summary(index))
    return index


def summary(index: Index) -> str:
    """Two lines on what a prepared corpus holds."""
    train, validation = index.tokens("train"), index.tokens("validation")
    megabytes = sum(index.text_bytes.values()) / 1e6
    return (
        f"{index.config['name']}: {sum(index.documents.values()):,} documents, {megabytes:.1f} MB of text "
        f"({index.duplicates:,} duplicates and {index.skipped:,} without text dropped); {train:,} training and "
        f"{validation:,} validation tokens, {1e6 * megabytes / (train + validation):.2f} bytes a token\n{index.folder}"
    )


def _finished(config: DataConfig, folder: Path) -> Index | None:
    """The index of a folder that is complete, after a check against the shards and the source."""
    try:
        index = Index.read(folder)
    except FileNotFoundError:
        return None
    if config.source == "python" or config.train_files:  # a hub dataset is named by the folder itself
        _check_same_source(open_source(config), index.source, folder)
    index.verify()
    (folder / PROGRESS_FILE).unlink(missing_ok=True)
    return index


def _prepare(config: DataConfig, folder: Path, progress: bool, shard_tokens: int) -> Index:
    source = open_source(config)
    with contextlib.closing(ProgressFile(folder / PROGRESS_FILE)) as file:
        place = file.load()
        if place is None or (not place.tokenizer_hash and place.source != source.description):
            (folder / "tokenizer.json").unlink(missing_ok=True)  # trained on other text
            place = Place(source.description)
            file.commit(place)
        _check_same_source(source, place.source, folder)
        with _bar(source, progress) as bar:
            task = bar.tasks[0].id
            tokenizer = _tokenizer(config, source, folder)
            if place.tokenizer_hash not in ("", tokenizer.hash):
                raise DataError(f"tokenizer {config.tokenizer} has changed: delete {folder} and prepare again")
            place.tokenizer_hash = tokenizer.hash
            work = CorpusWriter(config, folder, source, tokenizer, file, place, shard_tokens)
            for _ in work.steps():
                _show(bar, task, place)
            bar.update(task, completed=bar.tasks[0].total)
        index = work.finish()
    (folder / PROGRESS_FILE).unlink()
    return index


def _tokenizer(config: DataConfig, source: Source, folder: Path) -> Tokenizer:
    if config.tokenizer is not None:
        return PublishedTokenizer(config.tokenizer, config.vocab_size)
    if (folder / "tokenizer.json").exists():
        return TrainedTokenizer.load(folder)
    texts = training_text(config, source)
    first = next(texts, None)
    if first is None:
        raise DataError(f"corpus {config.name} is empty: no document with text in {source.where}")
    return TrainedTokenizer.train(itertools.chain([first], texts), config.vocab_size, folder)


def _check_same_source(source: Source, before: object, folder: Path) -> None:
    if source.description != before:
        raise DataError(
            f"{folder} was prepared from other files ({before}) than there are now ({source.description}): delete it "
            "and prepare again, or give the corpus another data.name"
        )


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One preparation of a folder at a time; the others wait."""
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process prepares {folder}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise DataError(f"{folder} is on a file system that has no locks: choose another data folder") from None
        yield


@contextlib.contextmanager
def _output_errors(folder: Path) -> Iterator[None]:
    """Errors of reading name their file where they are raised, so what comes here is about the output."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{folder} cannot be written ({reason}): make room, or correct its permissions, and give the same command "
            "again; it goes on where it stopped"
        ) from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"{folder / PROGRESS_FILE} is damaged: delete {folder} and prepare again") from error


def _bar(source: Source, enabled: bool) -> bars.Progress:
    parts = [part for split in SPLITS for part in source.parts[split]]
    sizes = [part.text_bytes for part in parts if part.text_bytes is not None]
    bar = bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[megabytes]:,.1f} MB"),
        bars.TransferSpeedColumn(),
        bars.TextColumn("{task.fields[documents]:,} documents"),
        bars.TimeRemainingColumn(),
        disable=not enabled,
    )
    bar.add_task("tokenizer", total=sum(sizes) if len(sizes) == len(parts) else None, documents=0, megabytes=0.0)
    return bar


def _show(bar: bars.Progress, task: bars.TaskID, place: Place) -> None:
    documents, size = sum(place.documents.values()), sum(place.text_bytes.values())
    bar.update(task, description="preparing", completed=size, documents=documents, megabytes=size / 1e6)
