"""Fixtures of the data tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for data_corpora, which tests import

import data_corpora

from scaling.data.shards import Index


@pytest.fixture(scope="session")
def make_index(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Index]:
    """`data_corpora.make_index` in a folder of its own."""

    def make(*args: Any, **kwargs: Any) -> Index:
        return data_corpora.make_index(tmp_path_factory.mktemp("corpus"), *args, **kwargs)

    return make
