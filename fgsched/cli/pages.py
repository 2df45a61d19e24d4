"""`fgsched help`: the pages that the installation has, and the manual."""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, NoReturn

import fgsched
from fgsched.domain.errors import Refused

_WIDTH = 24  # of the column of names
_BELOW_PREFIX = "share/doc/fgsched"


class Documentation(NamedTuple):
    """A folder with README.md, docs and examples, and the folder of the manual that belongs to it."""

    root: Path
    manual: Path  # of a checkout all pages are in it, of an installation in man1, man5 and man8

    @property
    def markdown_pages(self) -> dict[str, Path]:
        """The Markdown pages by name. A page of docs/design is found by its own name as well."""
        files = [self.root / "README.md", self.root / "CHANGELOG.md", self.root / "llms.txt"]
        named = {file.stem.lower(): file for file in files if file.exists()}
        named |= {file.stem: file for file in sorted((self.root / "docs").glob("*.md"))}
        return named | {file.stem: file for file in sorted((self.root / "docs/design").glob("*.md"))}

    @property
    def manuals(self) -> dict[str, Path]:
        """The pages of the manual by name, such as fgq and fgsched.toml."""
        files = [*self.manual.glob("fg*.[158]"), *self.manual.glob("man[158]/fg*.[158]*")]
        return {file.name.removesuffix(".gz")[:-2]: file for file in sorted(files)}


def find() -> Documentation:
    """Find the pages of this installation. Raises `Refused` if it has none.

    Of an installation they are below the prefix, which is a parent of the packages, whatever installed them.
    """
    package = Path(fgsched.__file__).parents[1]
    if (package / "docs/design").is_dir():  # a checkout
        return Documentation(package, package / "man")
    for prefix in (package, *package.parents):
        if (prefix / _BELOW_PREFIX / "docs").is_dir():
            return Documentation(prefix / _BELOW_PREFIX, prefix / "share/man")
    raise Refused(
        "this installation has no pages",
        f"They are expected in {_BELOW_PREFIX} of a directory above {package}.",
    )


def listed(documentation: Documentation) -> str:
    """Return the names of all pages, each with its title."""
    lines = [f"pages in {documentation.root}, opened by fgsched help PAGE:"]
    lines += [f"  {name:<{_WIDTH}}{_title(file)}" for name, file in documentation.markdown_pages.items()]
    lines += ["manual, opened by man PAGE or fgsched help PAGE:", f"  {' '.join(documentation.manuals)}"]
    return "".join(f"{line}\n" for line in lines)


def _title(file: Path) -> str:
    """Return the first heading of a page."""
    with file.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), "")


def names() -> Iterator[str]:
    """Yield the names of all pages, also those of the manual."""
    documentation = find()
    yield from documentation.markdown_pages
    yield from documentation.manuals


def read(documentation: Documentation, name: str) -> str:
    """Return the text of a page. Raises `Refused` if there is none of this name."""
    pages = documentation.markdown_pages
    key = name.removesuffix(".md").rpartition("/")[2]
    file = pages.get(key) or pages.get(key.lower())
    if file is not None:
        return file.read_text(encoding="utf-8")
    near = get_close_matches(key.lower(), [*pages, *documentation.manuals], n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise Refused(f"there is no page {name!r}", f"{hint}fgsched help lists the pages.")


def show_manual(file: Path) -> NoReturn:
    """Become `man` with a page of the manual. Raises `Refused` if the host has no man."""
    try:
        os.execvp("man", ["man", str(file)])
    except FileNotFoundError:
        raise Refused("there is no man on this host", f"Install man-db, or read {file}.") from None
