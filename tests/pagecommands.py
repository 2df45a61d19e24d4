"""The command lines of README, docs and the manual, and the reasons why some are not run."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fgsched.cli.install.slurmnames import names

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = set(PROJECT["tool"]["fgsched"]["native-commands"])
COMMANDS = OURS | set(names())
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_EXAMPLE = re.compile(r"^\.nf\n(.*?)^\.fi", re.MULTILINE | re.DOTALL)
_ASSIGNED = re.compile(r"\w+=\S*$")
_NO_SHELL = {"python", "toml", "json", "bash"}  # blocks of files: "bash" blocks with #! are job scripts


class Line(NamedTuple):
    """A command line, and the page that has it."""

    page: str
    text: str


def pages() -> list[Path]:
    """README, the pages for users and administrators, and the manual."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("man/*.[1-9]"))]


def lines() -> list[Line]:
    """Each different command line, at its first place."""
    found: dict[str, Line] = {}
    for path in pages():
        read = _of_manual if path.parent.name == "man" else _of_markdown
        for text in read(path.read_text()):
            found.setdefault(text, Line(str(path.relative_to(ROOT)), text))
    return list(found.values())


def _of_markdown(text: str) -> Iterator[str]:
    for kind, block in _FENCE.findall(text):
        if not (kind in _NO_SHELL and (kind != "bash" or block.startswith("#!"))):
            yield from _of_block(block)
    for span in _SPAN.findall(_FENCE.sub("", text)):
        line = " ".join(span.replace("\\|", "|").split())
        if " " in line and command_of(line) in COMMANDS:
            yield line


def _of_manual(text: str) -> Iterator[str]:
    plain = re.sub(r"\\f(\[\w*\]|\w)|\\&", "", text).replace("\\-", "-").replace("\\e", "\\")
    for block in _EXAMPLE.findall(plain):
        yield from _of_block(block)


def _of_block(block: str) -> Iterator[str]:
    """Yield the lines after '$ ', and those of our commands. A backslash continues a line."""
    for line in block.replace("\\\n", " ").splitlines():
        bare = line.strip()
        said = bare.removeprefix("$ ")
        if said != bare or command_of(bare) in COMMANDS:
            yield re.split(r"\s+# |\s{2,}(?=[a-z])", said)[0].rstrip()


def command_of(line: str) -> str:
    """The first command of a line, without sudo, variables and a directory."""
    for word in line.replace("$(", " ").split():
        if word != "sudo" and not _ASSIGNED.match(word):
            return word.rpartition("/")[2]
    return ""


_PLACEHOLDER = re.compile(
    r"…|\.\.\.|\[OPTION|<\w+>|(?<![\w$%{-])(?:ID|PID|DIR|FILE|NAME|ADDRESS|TIME|LIST|COMMAND|TEXT|URL|N|TYPE|SIZE)(?!\w)"
)
_FORMS = {  # lines that name an option or a subcommand, as in "with `fgctl hold`"
    *(
        "fgctl adopt",
        "fgctl drain",
        "fgctl hold",
        "fgctl pidinfo",
        "fgctl release",
        "fgctl show",
        "fgctl update",
    ),
    *("fgctl update partition", "fgreport --to", "fgsub --mail-type", "sacctmgr show", "scancel --signal"),
    *("scontrol requeue", "srun -n 2", "srun -t"),
}
_ELSEWHERE = {
    **dict.fromkeys(
        ("git", "cd", "systemctl", "apt-get", "pip", "tar", "dmesg", "ssh"), "of the host, not of fgsched"
    ),
    **dict.fromkeys(
        ("mkdir", "sh", "python3", "install", "ln", "mv", "useradd"), "of the host, not of fgsched"
    ),
    **dict.fromkeys(("nvidia-smi", "torchrun", "uv", "conda"), "a program that a test host lacks"),
}
_OUTSIDE = ("/backups", "/srv", "/etc", "/opt", "/mnt")
_REAL = {"--jupyter", "jupyter", "--enforcement"}
_HOSTS = ("init", "uninstall", "upgrade", "cron", "policy")  # of fgsched, for the whole host


def reason(line: str) -> str:
    """Why a line is not run; '' if it is."""
    command = command_of(line)
    if command not in COMMANDS:
        return _ELSEWHERE.get(command, "not a command of fgsched")
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return "a mention: its quotes are open"
    if "Job_id=" in line:
        return "a mention: the subject of a mail"
    if _PLACEHOLDER.search(line):
        return "a mention: it has placeholders"
    if line in _FORMS or (words[1:2] and words[1] in COMMANDS):
        return "a mention: an option or a command"
    if (
        command in ("fgsub", "sbatch")
        and all(word.startswith("-") for word in words[1:])
        and "--wrap" not in line
    ):
        return "a mention: it has no script" if "--batch" not in line else ""
    return _of_words(command, [word for word in words if word != "sudo"])


def _is_outside(word: str) -> bool:
    return word.startswith(_OUTSIDE) or "=/srv" in word


def _of_words(command: str, words: list[str]) -> str:
    verb = words[1] if len(words) > 1 else ""
    goes_on = command == "fgtop" and not {"--once", "--json"} & set(words)
    follows = words[:2] == ["fgctl", "attach"] or command == "sattach" or verb == "subscribe"
    reasons = {
        "changes the host": "--system" in words or (command == "fgsched" and verb in _HOSTS),
        "runs until it is ended": command == "fgsched" and verb == "run",
        "needs a terminal": "--pty" in words or goes_on,
        "follows a job or the events until it is ended": follows,
        "repeats until it is ended": "-i" in words and command in ("fgq", "squeue"),
        "needs Jupyter or a GPU: scripts/clients/jupyter, scripts/gpu-check": bool(_REAL & set(words)),
        "writes to directories of the host": any(map(_is_outside, words)),
        "needs an image: tests/test_containers.py": any(word.startswith("--container") for word in words),
    }
    return next((why for why, holds in reasons.items() if holds), "")
