"""Every module that makes, changes or removes files is listed with whose place it is (docs/security.md)."""

import ast
from pathlib import Path

import pytest

import fgsched

PACKAGE = Path(fgsched.__file__).parent
CHANGES = {
    "os": {
        *(
            "chmod",
            "chown",
            "fchmod",
            "fchown",
            "lchown",
            "link",
            "makedirs",
            "mkdir",
            "mkfifo",
            "mknod",
            "remove",
        ),
        *("removedirs", "rename", "renames", "replace", "rmdir", "symlink", "truncate", "unlink", "utime"),
    },
    "shutil": {"chown", "copy", "copy2", "copyfile", "copytree", "move", "rmtree"},
    "tempfile": {"NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile", "mkdtemp", "mkstemp"},
    "sqlite3": {"connect"},
}
OF_PATHS = {
    *("chmod", "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink"),
    *("write_bytes", "write_text"),
}
WRITES = ("O_CREAT", "O_RDWR", "O_TRUNC", "O_WRONLY")

# whose place -> the modules that write there
PLACES = {
    "state directory: private to the controller's user": {
        *("accounting/accountant", "accounting/backup", "accounting/guard", "accounting/ledger", "client"),
        *("controller/audit", "controller/decisionlog", "hooks/runner", "mail/mailer", "mail/spool"),
        *("store/opening", "store/recovering", "store/schema", "store/files", "store/wal"),
        *("system/disk", "system/ownhost", "system/paths", "system/runplace"),
    },
    "run directory: of the controller's user, and writable by nobody else": {
        *("gpus/hooktest", "launch/fence", "launch/rundir", "server", "system/cleaner", "system/containers"),
        *("system/generations", "system/mounts"),
    },
    "shared: through descriptors, with type, owner and links examined at each use": {
        *(
            "reports/folder",
            "cli/install/carry",
            "cli/install/slurmnames",
            "python/calls",
            "system/places",
        ),
        *("system/safeopen", "system/spaces", "system/unanswered"),
    },
    "of a user: with the rights of this user only": {
        *("cli/fgctl", "cli/runningjob", "interactive/containers", "interactive/agent", "interactive/link"),
        *("slurm/running", "slurm/streams", "submission/checks", "python/task"),
        *("cli/web", "system/webplace", "web/__main__"),
    },
    "image or host that root installs: refused unless only root can change it": {"cli/install/run"},
    "new directory with a random name, of this user only": {"cli/doctor", "cli/enforcement"},
    "of the kernel: /proc, /sys, control groups, memory, /dev/null": {
        *("cli/command", "controller/enforcementcheck", "controller/fencing", "interactive/connected"),
        *("controller/mailing", "system/capture", "system/cgroups", "system/nice"),
    },
}
LISTED = [module for modules in PLACES.values() for module in modules]


def is_change(call):
    """Return whether a call makes, changes or removes a file, or opens one for writing."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in CHANGES:
            return name in CHANGES[module] or (module == "os" and name == "open" and is_for_writing(call, 1))
        case ast.Attribute(attr="open"):
            return is_for_writing(call, 0)
        case ast.Attribute(attr="replace"):  # that of a text has two arguments
            return len(call.args) == 1 and not call.keywords
        case ast.Attribute(attr=name):
            return name in OF_PATHS
        case ast.Name(id="open"):
            return is_for_writing(call, 1)
    return False


def is_for_writing(call, place):
    """Return whether the mode or the flags of an open are those of a writer, or are a variable."""
    options = [
        *call.args[place : place + 1],
        *(one.value for one in call.keywords if one.arg in ("mode", "flags")),
    ]
    if not options:
        return False
    if isinstance(options[0], ast.Constant):
        return bool(set(str(options[0].value)) & set("wax+"))
    names = [getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(options[0])]
    return any(name in WRITES for name in names) or not any(name.startswith("O_") for name in names)


def changing():
    """Return module -> lines with such calls."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if lines := sorted({call.lineno for call in calls if is_change(call)}):
            found[path.relative_to(PACKAGE).with_suffix("").as_posix()] = lines
    return found


def test_every_module_that_changes_files_is_listed_with_whose_place_it_is():
    assert sorted(LISTED) == sorted(changing()), "list a new place in PLACES and in docs/security.md"


CHANGING = """
os.mkdir(p)
os.chown(p, 0, 0)
os.open(p, flags)
os.open(p, os.O_RDONLY | os.O_CREAT)
open(p, 'a')
open(p, mode=m)
p.open('wb')
p.write_text('')
p.replace(q)
shutil.rmtree(p)
tempfile.mkdtemp()
"""
READING = """
open(p)
p.open()
os.open(p, os.O_PATH)
os.stat(p)
s.replace('a', 'b')
"""


@pytest.mark.parametrize("line", CHANGING.split("\n")[1:-1])
def test_a_call_that_changes_files_is_seen(line):
    assert is_change(ast.parse(line, mode="eval").body)


@pytest.mark.parametrize("line", READING.split("\n")[1:-1])
def test_a_call_that_only_reads_is_none(line):
    assert not is_change(ast.parse(line, mode="eval").body)
