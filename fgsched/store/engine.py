"""Identify the SQLite library, and whether this version can lose commits."""

import sqlite3

_FIRST, _MENDED = (3, 7, 0), (3, 51, 3)
_BACKPORTS = {(3, 44): 6, (3, 50): 7}  # (major, minor) -> the first patch that is mended too


def version() -> tuple[int, int, int]:
    return sqlite3.sqlite_version_info


def may_lose_commits(version: tuple[int, int, int]) -> bool:
    """Tell whether this SQLite version can reset the write-ahead log while another connection writes."""
    mended = _BACKPORTS.get(version[:2])
    return _FIRST <= version < _MENDED and (mended is None or version[2] < mended)
