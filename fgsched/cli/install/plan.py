"""Decide what `fgsched init` makes and what `fgsched uninstall` removes. Pure: no input and no output."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Literal

from msgspec import Struct

Kind = Literal["directory", "file", "link"]


class Want(Struct, frozen=True, kw_only=True):
    """Something that an installation has on disk."""

    path: str
    kind: Kind
    about: str
    text: str = ""  # of a file; the target of a link
    mode: int = 0o644
    is_sites: bool = False  # the administrator edits it: it is written once and never replaced
    is_recorded: bool = False  # it is written again if the manifest does not list it

    @property
    def digest(self) -> str:
        """Return what identifies the content."""
        return digest(self.kind, self.text)


class PathContent(Struct, frozen=True):
    """Something that is on disk."""

    kind: str  # a Kind, or "other"
    digest: str = ""


class ManifestEntry(Struct, frozen=True, kw_only=True):
    """What the manifest says about a path, or about a command that was run.

    It is written before the action, so that an interrupted action is known.
    """

    kind: str  # a Kind, or "command"
    digest: str = ""
    was: str = ""  # digest of our earlier content, which this action replaces
    undo: tuple[str, ...] = ()  # command that takes back a command
    is_done: bool = False  # of a command: it has succeeded


class Make(Struct, frozen=True):
    """Create a directory, a file or a link, or replace a file or link of ours."""

    want: Want
    was: str = ""  # digest of what is replaced

    def __str__(self) -> str:
        verb = "replace" if self.was else "create"
        target = f" -> {self.want.text}" if self.want.kind == "link" else ""
        mode = f" {self.want.mode:04o}" if self.want.kind != "link" else ""
        return f"{verb} {self.want.kind} {self.want.path}{target}{mode}: {self.want.about}"


class RunCommand(Struct, frozen=True, kw_only=True):
    """Run a command once."""

    key: str  # in the manifest
    words: tuple[str, ...]
    undo: tuple[str, ...] = ()
    about: str

    def __str__(self) -> str:
        return f"run {' '.join(self.words)}: {self.about}"


class Remove(Struct, frozen=True):
    """Remove what we made. A directory is removed only if it is empty."""

    path: str
    kind: str

    def __str__(self) -> str:
        return f"remove {self.kind} {self.path}"


class Undo(Struct, frozen=True):
    """Take back a command that was run."""

    key: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"run {' '.join(self.words)}"


class LeavePath(Struct, frozen=True):
    """Leave a path as it is."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"keep {self.path}: {self.why}"


Action = Make | RunCommand | Remove | Undo | LeavePath


def digest(kind: str, text: str) -> str:
    """Return what identifies the content of a file or the target of a link; "" for a directory."""
    if kind == "file":
        return hashlib.sha256(text.encode()).hexdigest()
    return text if kind == "link" else ""


def with_parents(wants: Iterable[Want], contents: Mapping[str, PathContent]) -> Iterator[Want]:
    """Yield the wants, each after the directories above it that do not exist."""
    known_paths = set(contents)
    for want in wants:
        for above in reversed(PurePosixPath(want.path).parents):
            if str(above) not in known_paths:
                known_paths.add(str(above))
                yield Want(path=str(above), kind="directory", mode=0o755, about=f"for {want.path}")
        known_paths.add(want.path)
        yield want


def paths(wants: Iterable[Want]) -> set[str]:
    """Return every path that `with_parents` and `to_install` must know about."""
    listed = list(wants)
    above = {str(parent) for want in listed for parent in PurePosixPath(want.path).parents}
    return above | {want.path for want in listed}


def to_install(
    wants: Iterable[Want], contents: Mapping[str, PathContent], manifest: Mapping[str, ManifestEntry]
) -> list[Action]:
    """Return the actions after which everything wanted is there.

    Args:
        contents: what is on disk at the paths; a path that is not there is left out.
        manifest: what earlier runs made.
    """
    decided = (
        _of(parent, contents.get(parent.path), manifest.get(parent.path))
        for parent in with_parents(wants, contents)
    )
    return [action for action in decided if action is not None]


def _of(want: Want, content: PathContent | None, entry: ManifestEntry | None) -> Action | None:
    if content is None:
        return Make(want)
    if (content.kind, content.digest) == (want.kind, want.digest):
        return Make(want) if want.is_recorded and entry is None else None
    if want.is_sites and content.kind == want.kind:
        return None
    if content.kind != want.kind or entry is None:
        return LeavePath(want.path, "it was there before, with another content")
    if content.digest in (entry.digest, entry.was):
        return Make(want, content.digest)
    return LeavePath(want.path, "it was changed after fgsched init wrote it")


def to_run(command: RunCommand, entry: ManifestEntry | None, *, is_there: bool) -> list[RunCommand]:
    """Return the command if it must be run.

    Args:
        is_there: what the command makes is there already.
    """
    if entry is None:
        return [] if is_there else [command]
    return [] if entry.is_done else [command]


def to_remove(manifest: Mapping[str, ManifestEntry], contents: Mapping[str, PathContent]) -> list[Action]:
    """Return the actions that take away what is in the manifest, the last first."""
    return [
        action
        for name, entry in reversed(list(manifest.items()))
        if (action := _without(name, entry, contents.get(name)))
    ]


def _without(name: str, entry: ManifestEntry, content: PathContent | None) -> Action | None:
    if entry.kind == "command":
        return Undo(name, entry.undo) if entry.undo else None
    if content is None:
        return None
    if content.kind == entry.kind and (
        entry.kind == "directory" or content.digest in (entry.digest, entry.was or None)
    ):
        return Remove(name, entry.kind)
    return LeavePath(name, "it was changed after fgsched init wrote it")
