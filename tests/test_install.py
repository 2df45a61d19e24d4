"""fgsched init and fgsched uninstall: the plan, its execution with a crash at any step, and a whole host."""

import os
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from fakehost import hosting, why_not, with_own_run
from fgsched.cli.install import host as hosts
from fgsched.cli.install import wanted
from fgsched.cli.install.carry import STATE, Carrier, Manifest
from fgsched.cli.install.host import Hardware, InstalledGpu, InstallHost, look
from fgsched.cli.install.plan import (
    LeavePath,
    Make,
    ManifestEntry,
    PathContent,
    Remove,
    RunCommand,
    Undo,
    Want,
    digest,
    paths,
    to_install,
    to_remove,
    to_run,
)
from fgsched.cli.install.run import _refuse_unfit_programs
from fgsched.cli.shells import COMMANDS
from fgsched.config.load import load
from fgsched.domain.errors import Exit, Refused
from fgsched.system.paths import Paths
from live_host import ROOT

_WHY_NOT = why_not()
OURS, NEWER, THEIRS = (digest("file", text) for text in ("ours", "newer", "theirs"))
FILE = Want(path="/f", kind="file", text="newer", about="a file")
SITES = Want(path="/f", kind="file", text="newer", is_sites=True, about="a file")
LINK = Want(path="/f", kind="link", text="/to", about="a link")
ROOT_OF_ALL = {"/": PathContent("directory")}
CARDS = Hardware(gpus=(InstalledGpu(0, "NVIDIA A100", 80 << 30),), cpus=32, memory=256 << 30)
NONE = Hardware(note="there is no driver", cpus=2, memory=4 << 30)
HOST = InstallHost(
    program="/opt/fgsched/bin/fgsched",
    hardware=CARDS,
    systemd="running",
    has_unit=False,
    has_cron=False,
    has_mail=True,
    has_group=False,
    links={"/usr/local/bin/fgq": "/opt/fgsched/bin/fgq"},
    operator="ann",
)


# -- the plan -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("want", "found", "entry", "action"),
    [
        (FILE, None, None, Make(FILE)),
        (FILE, None, ManifestEntry(kind="file", digest=NEWER), Make(FILE)),
        (FILE, PathContent("file", NEWER), None, None),
        (FILE, PathContent("file", OURS), ManifestEntry(kind="file", digest=OURS), Make(FILE, OURS)),
        (
            FILE,
            PathContent("file", OURS),
            ManifestEntry(kind="file", digest=NEWER, was=OURS),
            Make(FILE, OURS),
        ),
        (
            FILE,
            PathContent("file", THEIRS),
            None,
            LeavePath("/f", "it was there before, with another content"),
        ),
        (
            FILE,
            PathContent("file", THEIRS),
            ManifestEntry(kind="file", digest=OURS),
            LeavePath("/f", "it was changed after fgsched init wrote it"),
        ),
        (SITES, PathContent("file", THEIRS), None, None),
        (SITES, PathContent("file", OURS), ManifestEntry(kind="file", digest=OURS), None),
        (
            LINK,
            PathContent("file", THEIRS),
            None,
            LeavePath("/f", "it was there before, with another content"),
        ),
        (LINK, PathContent("link", "/old"), ManifestEntry(kind="link", digest="/old"), Make(LINK, "/old")),
    ],
)
def test_what_is_there_and_what_was_written_decide_about_a_file(want, found, entry, action):
    there = ROOT_OF_ALL | ({"/f": found} if found else {})
    expected = [action] if action else []
    assert to_install([want], there, {"/f": entry} if entry else {}) == expected


def test_missing_directories_are_made_from_the_top_and_once():
    wants = [Want(path=f"/a/b/{name}", kind="file", about="a file") for name in "xy"]
    made = to_install(wants, ROOT_OF_ALL, {})
    assert [one.want.path for one in made] == ["/a", "/a/b", "/a/b/x", "/a/b/y"]


@pytest.mark.parametrize(
    ("entry", "is_there", "is_run"),
    [
        (None, False, True),
        (None, True, False),
        (ManifestEntry(kind="command"), True, True),
        (ManifestEntry(kind="command", is_done=True), False, False),
    ],
)
def test_a_command_runs_until_it_has_succeeded_and_not_for_what_others_did(entry, is_there, is_run):
    command = RunCommand(key="k", words=("true",), about="try")
    assert to_run(command, entry, is_there=is_there) == ([command] if is_run else [])


def test_only_what_is_unchanged_is_removed_and_the_last_first():
    manifest = {
        "/d": ManifestEntry(kind="directory"),
        "/d/ours": ManifestEntry(kind="file", digest=OURS),
        "/d/changed": ManifestEntry(kind="file", digest=OURS),
        "/d/gone": ManifestEntry(kind="file", digest=OURS),
        "group": ManifestEntry(kind="command", undo=("groupdel", "g")),
    }
    found = {
        "/d": PathContent("directory"),
        "/d/ours": PathContent("file", OURS),
        "/d/changed": PathContent("file", THEIRS),
    }
    assert to_remove(manifest, found) == [
        Undo("group", ("groupdel", "g")),
        LeavePath("/d/changed", "it was changed after fgsched init wrote it"),
        Remove("/d/ours", "file"),
        Remove("/d", "directory"),
    ]


# -- the texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hardware", "devices"), [(CARDS, "auto"), (NONE, "sim:2x16G")])
def test_the_first_configuration_is_valid_and_names_the_operators(hardware, devices, tmp_path):
    file = tmp_path / "fgsched.toml"
    file.write_text(wanted.config(hardware))
    config = load(Paths(mode="user", home=tmp_path, state=tmp_path, run=tmp_path, config_file=file))
    assert (config.devices, config.default_time) == (devices, 86_400)
    assert config.operator_groups == ("fgsched-operators",)
    assert "@" not in file.read_text()


def test_the_configuration_in_an_image_does_not_describe_the_machine_that_makes_it(tmp_path):
    text = wanted.config(hosts.examine(tmp_path, {}).hardware)
    assert 'devices = "auto"\n' in text
    assert "# Jobs may use all CPUs and all memory. Keep" in text


def test_the_first_configuration_lists_the_cards():
    assert "# GPU 0: NVIDIA A100, 81920M\n" in wanted.config(CARDS)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_of_the_controller(tmp_path):
    unit = tmp_path / "fgsched.service"
    unit.write_text(wanted.unit("/bin/true"))
    done = subprocess.run(
        with_own_run("systemd-analyze", "verify", "--man=no", str(unit)),
        capture_output=True,
        text=True,
        env=dict(os.environ, SYSTEMD_UNIT_PATH=f"{tmp_path}:"),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_with_blanks_is_one_word_of_the_unit():
    assert 'ExecStart="/opt/my 100%%/fgsched" run --system\n' in wanted.unit("/opt/my 100%/fgsched")


def test_without_a_mail_program_no_report_is_sent():
    mailed, silent = (
        {Path(one.path).name for one in wanted.wants(host, "root") if one.path.endswith(".timer")}
        for host in (HOST, InstallHost(**{**_fields(HOST), "has_mail": False}))
    )
    assert silent == {"fgsched-idle.timer", "fgsched-strangers-policy.timer"}
    assert silent < mailed


def _fields(host):
    return {name: getattr(host, name) for name in host.__struct_fields__}


def test_cron_has_the_lines_where_there_is_no_systemd():
    host = InstallHost(**{**_fields(HOST), "systemd": "", "has_cron": True})
    (file,) = [one for one in wanted.wants(host, "root") if "cron" in one.path]
    lines = [line for line in file.text.splitlines() if not line.startswith("#")]
    assert len(lines) == 7
    assert all(line.split()[5] == "root" for line in lines)


# -- a crash at any step ------------------------------------------------------------------------------


class Crash(Exception):
    """The process is gone."""


class Image:
    """A directory in which actions are carried out, with commands that only note that they ran."""

    def __init__(self, path):
        self.path, self.done = path, set()

    def run(self, words):
        self.done.add(words) if words[0] == "do" else self.done.discard(("do", *words[1:]))
        return ""

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Crash

    def carried(self, decide, crash_at=0):
        """Carry out what is to be done now; a crash leaves everything as it is."""
        self.left = crash_at
        manifest = Manifest(self.path)
        Carrier(self.path, manifest, self.run, self.step).carry(decide(manifest.entries))
        return manifest

    def install(self, entries):
        wants = [
            Want(path=STATE, kind="directory", mode=0o700, about="state"),
            Want(path="/etc/fgsched/fgsched.toml", kind="file", text="a", is_sites=True, about="config"),
            Want(path="/etc/unit", kind="file", text="new", mode=0o600, about="unit"),
            Want(path="/bin/fgq", kind="link", text="/opt/fgq", about="link"),
        ]
        command = RunCommand(key="group", words=("do", "g"), undo=("undo", "g"), about="group")
        files = to_install(wants, look(self.path, paths(wants)), entries)
        return [*files, *to_run(command, entries.get("group"), is_there=False)]

    def remove(self, entries):
        return to_remove(entries, look(self.path, entries))

    @property
    def tree(self):
        files = {str(path.relative_to(self.path)): path for path in self.path.rglob("*")}
        del files["var/lib/fgsched/init.json"]
        return {
            name: (os.lstat(path).st_mode, os.readlink(path) if path.is_symlink() else "")
            for name, path in files.items()
        }


def crashed(image, decide, at):
    with suppress(Crash):
        image.carried(decide, at)
        return False
    return True


def test_a_second_run_completes_what_a_crash_at_any_step_has_left(tmp_path):
    whole = Image(tmp_path / "whole")
    whole.path.mkdir()
    whole.carried(whole.install)
    at = 1
    while True:
        image = Image(tmp_path / str(at))
        image.path.mkdir()
        if not crashed(image, image.install, at):
            break
        manifest = image.carried(image.install)
        assert (image.tree, image.done) == (whole.tree, whole.done), at
        assert image.install(manifest.entries) == [], at
        at += 1
    assert at > 15


def test_a_second_removal_completes_what_a_crash_at_any_step_has_left(tmp_path):
    at = 1
    while True:
        image = Image(tmp_path / str(at))
        image.path.mkdir()
        image.carried(image.install)
        is_crashed = crashed(image, image.remove, at)
        image.carried(image.remove).close()
        left = [path for path in image.path.rglob("*") if path.name not in ("var", "lib")]
        assert (left, image.done) == ([], set()), at
        if not is_crashed:
            break
        at += 1
    assert at > 10


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0")
@pytest.mark.parametrize("place", ["var/lib/fgsched/init.json", "var/lib/fgsched", "var", ""])
@pytest.mark.parametrize("way", ["owner", "mode"])
def test_root_believes_no_recording_that_another_user_could_have_written(tmp_path, place, way):
    """Its commands would be run by `fgsched uninstall`, and its files removed."""
    image = Image(tmp_path / "image")
    image.path.mkdir()
    image.carried(image.install)
    if way == "owner":
        os.chown(image.path / place, 65534, 65534)
    else:
        (image.path / place).chmod(0o777)
    with pytest.raises(Refused, match=r"relies on|writable by others"):
        Manifest(image.path)


# -- a host -------------------------------------------------------------------------------------------


_SYSTEMCTL = """#!/bin/sh
# systemd as far as init uses it: enable --now of the controller starts it.
echo "$*" >>/run/systemctl
case "$*" in
"enable --now fgsched-idle.timer") touch /var/lib/systemd/timers/stamp-fgsched-idle.timer ;;
is-active*) exit 3 ;;
show*) echo inactive ;;
"enable --now fgsched.service") exec {python} -m fgsched.cli.fgsched start --system ;;
esac
"""


@pytest.fixture(scope="module")
def bare():
    """A host on which nobody has installed anything, with a systemctl that notes what it is told."""
    with hosting(started=False) as host:
        shutil.rmtree(host.path / "etc/fgsched")
        (host.path / "etc/ld.so.preload").unlink(missing_ok=True)
        host.do("root", "sh", "-c", f"mkdir {host.path}/local; mount --bind {host.path}/local /usr/local")
        (host.root / "run/systemd/system").mkdir(parents=True)
        (host.root / "var/lib/systemd/timers").mkdir(parents=True)
        (host.path / "bin").mkdir()
        (host.path / "bin/systemctl").write_text(_SYSTEMCTL.format(python=sys.executable))
        (host.path / "bin/systemctl").chmod(0o755)
        yield host
        if (host.root / "run/fgsched/socket").exists():
            host.stop()


def told(host, *words):
    """What one of our commands says, called by alice with sudo."""
    env = {"PATH": f"{host.path}/bin:{os.environ['PATH']}", "SUDO_USER": "alice"}
    return host.run("root", "fgsched", *words, env=env)


@pytest.mark.root
@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")
def test_a_bare_host_is_installed_runs_a_users_job_and_is_bare_again(bare):
    before = everything(bare)
    printed = told(bare, "init", "--print")
    assert (printed.status, everything(bare)) == (0, before)
    done = told(bare, "init")
    assert done.status == 0, done.err + bare.log
    assert "checked: a job of alice ran on 2 GPUs\n" in done.out, done.out
    assert set(done.out.splitlines()) > {line for line in printed.lines if not line.startswith(" ")}
    assert modes(bare, "var/lib/fgsched", "etc/fgsched", "etc/fgsched/fgsched.toml", "etc/ld.so.preload") == [
        0o700,
        0o755,
        0o644,
        0o644,
    ]
    assert (bare.path / "etc/ld.so.preload").read_text() == ""
    assert bare.run("bob", "fgsub", "--hold", "--wrap=true").status == 0
    assert bare.run("alice", "fgctl", "release", "2").status == 0, "alice is an operator: of the group"
    again = told(bare, "init")
    assert (again.status, again.out) == (0, "nothing to do: everything is in place\n")

    check_that_a_lost_state_is_refused(bare)
    check_a_check_that_cannot_end(bare)
    config = bare.path / "etc/fgsched/fgsched.toml"
    config.write_text(config.read_text().replace("1-00", "2-00"))
    assert told(bare, "init").out == again.out
    bare.over(2)
    running = bare.running("bob")
    check_that_a_running_job_keeps_its_queue(bare, running)
    check_that_a_changed_configuration_stays(bare)
    assert told(bare, "init").status == 0
    assert bare.job(running)["state"] == "RUNNING"

    check_that_names_of_slurm_go_with_it(bare)
    assert told(bare, "uninstall", "--purge", "--kill").status == 0
    assert everything(bare) - before == {"etc/fgsched", "etc/fgsched/fgsched.toml"}
    assert before - everything(bare) == set()


def check_that_names_of_slurm_go_with_it(host):
    """Those of root, in a directory of PATH and in another one; not those of a user."""
    own = host.home("alice") / "bin"
    assert host.run("alice", "fgsched", "slurm-names", "--install", str(own)).status == 0
    for folder in ("/usr/local/bin", "/usr/local/slurm"):
        done = told(host, "slurm-names", "--install", folder)
        assert done.status == 0, done.err
    gone = told(host, "uninstall")
    assert "removed from /usr/local/slurm\n" in gone.out
    assert "removed from /usr/local/bin\n" in gone.out
    assert (own / "sbatch").exists()
    (host.root / "usr/local/slurm").rmdir()  # it is empty
    assert told(host, "init").status == 0


def check_that_no_command_begins_another_queue(host):
    """After a boot without the disk there is no socket; no command starts a controller of its own."""
    (host.root / "run/fgsched/socket").unlink()
    for program in (("fgq",), ("fgsub", "--wrap=true")):
        for words in (program, (str(Path(sys.executable).with_name(program[0])), *program[1:])):
            is_native = words is not program
            done = host.do("alice", *words) if is_native else host.run("alice", *words)
            assert (done.status, done.out) == (Exit.UNREACHABLE, ""), words
            assert "the controller is not running" in done.err
    found = told(host, "doctor")
    assert "FAIL queue" in found.out
    assert "fgsched is missing or is not the one that fgsched init made" in found.out


def check_that_a_changed_configuration_stays(host):
    """While a job runs, which continues."""
    kept = told(host, "uninstall")
    assert kept.status == 0, kept.err
    assert "1 running job continues" in kept.out
    assert "keep /etc/fgsched/fgsched.toml: it was changed after fgsched init wrote it\n" in kept.out
    assert "keep /etc/fgsched: it is not empty\n" in kept.out
    assert "remove directory /etc/fgsched" not in kept.out


def check_that_a_lost_state_is_refused(host):
    """A controller starts without its state directory, or with another one, only after init."""
    assert host.run("root", "fgsched", "stop").status == 0
    state, away = host.root / "var/lib/fgsched", host.root / "var/lib/away"
    state.rename(away)
    for _ in range(2):
        refused = host.run("root", "fgsched", "start", "--system")
        assert (refused.status, "fgsched is missing or is not the one" in refused.err) == (Exit.STORAGE, True)
        state.mkdir(mode=0o700, exist_ok=True)  # as an empty mount point
    check_that_no_command_begins_another_queue(host)
    assert list(state.iterdir()) == []
    done = told(host, "init")
    assert "create file /etc/fgsched/initialised" in done.out
    assert host.run("root", "fgsched", "stop").status == 0
    shutil.rmtree(state)
    away.rename(state)
    host.start()


def check_a_check_that_cannot_end(host):
    """Where no job can start, init --check says what it has seen, and cancels its job."""
    assert host.run("root", "fgctl", "drain", "gpu=0,1", "reason=test").status == 0
    done = host.do("root", sys.executable, "-c", _IMPATIENT)
    job = done.err.split()[1]
    why = f"job {job} of bob did not end within 0 seconds: it was PENDING (GpuDrained), and is cancelled\n"
    assert done.err.startswith(why), done.err
    assert host.over(int(job))["state"] == "CANCELLED"
    assert host.run("root", "fgctl", "resume", "gpu=0,1").status == 0


_IMPATIENT = """
import sys
from fgsched.cli.install.host import check
from fgsched.cli.install.run import host_paths
from fgsched.client import Client
from fgsched.domain.errors import Refused
try:
    check(Client(host_paths()), "bob", 2, patience=0)
except Refused as refused:
    sys.exit(str(refused))
"""


def check_that_a_running_job_keeps_its_queue(host, running):
    """A purge is refused, also without a controller; and then init names the state of the unit."""
    refused = told(host, "uninstall", "--purge")
    assert (refused.status, "1 job is not over" in refused.err) == (Exit.REFUSED, True)
    assert host.run("root", "fgsched", "stop").status == 0
    for words in (["--purge"], ["--purge", "--kill"]):
        refused = told(host, "uninstall", *words)
        why = f"the controller is stopped, and jobs still run: {running}\n"
        assert (refused.status, why in refused.err) == (Exit.REFUSED, True), refused.err
    checked = told(host, "init", "--check")
    why = "nothing was checked: fgsched.service is inactive, so the controller does not run"
    assert (checked.status, why in checked.err) == (Exit.REFUSED, True), checked.err
    host.start()


def everything(host):
    """The files of the host, but for those that groupadd and systemctl keep for themselves."""
    own = {"etc/group-", "etc/gshadow-", "etc/.pwd.lock", "etc/subuid-", "etc/subgid-"}
    found = {
        str(path.relative_to(host.root / top))
        for top, below in ((".", "etc"), (".", "var/lib"), (".", "usr/local"), (".", "run"))
        for path in (host.root / below).rglob("*")
    }
    return found - own - {"run/systemctl"}


def modes(host, *names):
    return [(host.root / name).stat().st_mode & 0o7777 for name in names]


def test_a_plan_is_printed_even_where_users_cannot_read_the_program(monkeypatch, capsys):
    def refuse():
        raise Refused("users cannot read fgsched", "Install it elsewhere.")

    monkeypatch.setattr(hosts, "refuse_unfit_programs", refuse)
    _refuse_unfit_programs(is_print=True)
    told = "fgsched: error: init would be refused: users cannot read fgsched\nInstall it elsewhere.\n"
    assert capsys.readouterr().err == told
    with pytest.raises(Refused):
        _refuse_unfit_programs(is_print=False)


def test_the_unit_starts_the_program_beside_this_interpreter():
    unit = wanted.unit(str(Path(sys.executable).with_name("fgsched")))
    (line,) = [one for one in unit.splitlines() if one.startswith("ExecStart=")]
    assert line == f"ExecStart={Path(sys.executable).parent}/fgsched run --system"


def test_every_command_of_the_project_gets_a_link():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert sorted(COMMANDS) == sorted(project["tool"]["fgsched"]["native-commands"])


def test_the_project_contains_the_texts_that_are_installed():
    setup = (ROOT / "setup.py").read_text()
    assert '"fgsched.cli.install": ["fgsched.toml", "fgsched.service"]' in setup
    tomllib.loads(wanted.config(CARDS))
