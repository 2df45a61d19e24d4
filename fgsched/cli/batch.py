"""Read `fgsub --batch`: a list of submissions, one command line of fgsub in each line."""

from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

from msgspec.structs import replace

from fgsched.domain.errors import BadUsage, FgschedError
from fgsched.domain.text import shown
from fgsched.domain.units import SubmitContext
from fgsched.lifecycle.jobscript import Unclosed, shell_words
from fgsched.submission import options
from fgsched.submission.checks import Process
from fgsched.submission.options import AnySetting
from fgsched.submission.prepare import Prepared, SubmissionPreparer

_LARGEST = 256 << 20  # bytes of a list


def read_lines(file: str, stdin: BinaryIO | None) -> tuple[str, list[str]]:
    """Return the name of the list for messages, and its lines; '-' is standard input. Raises BadUsage."""
    name = "standard input" if file == "-" else shown(file)
    try:
        if file == "-":
            data = b"" if stdin is None else stdin.read(_LARGEST + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a file name"
        raise BadUsage(f"cannot read {name}: {why}") from None
    if len(data) > _LARGEST:
        raise BadUsage(f"{name} is larger than {_LARGEST >> 20} MiB")
    return name, data.removeprefix(BOM_UTF8).decode("utf-8", "surrogateescape").split("\n")


def parse_batch(
    lines: Iterable[str],
    name: str,
    common: Sequence[AnySetting],
    *,
    environ: Mapping[str, str],
    cwd: str,
    site: SubmitContext,
) -> list[Prepared]:
    """Return one submission for each line that is neither blank nor a comment.

    `common` are the options given with --batch; options of a line override them. A list is submitted as a
    whole or not at all.

    Raises:
        BadUsage: the first invalid line, with its place.
    """
    shared = [setting for setting in common if setting.option.name != "batch"]
    if any(setting.option.name == "wrap" for setting in shared):
        raise BadUsage("--wrap and --batch exclude each other; give one")
    submitter = SubmissionPreparer(Process(environ, cwd), site=site, common=shared)
    prepared: list[Prepared] = []
    for number, line in enumerate(lines, start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        try:
            prepared.append(replace(_prepare(submitter, bare), place=f"{name}:{number}"))
        except FgschedError as error:
            raise BadUsage(f"{name}:{number}: {error.cause}", error.remedy) from None
    return prepared


def _prepare(submitter: SubmissionPreparer, line: str) -> Prepared:
    if "\0" in line:
        raise BadUsage("a NUL byte cannot be part of a command line")
    try:
        settings, words = options.read(shell_words(line))
    except Unclosed:
        raise BadUsage(f"no closing quotation in {shown(line)}") from None
    wrapped = False
    for setting in settings:
        wrapped = wrapped or setting.option.name == "wrap"
        if setting.option.of_call:
            raise BadUsage(f"--{setting.option.name} concerns the whole list; give it beside --batch")
    if not wrapped and (not words or words[0] == "-"):
        raise BadUsage("no script given")
    return submitter.prepare(settings, words)
