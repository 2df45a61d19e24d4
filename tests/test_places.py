"""Places that users share: nothing of others is followed, taken, replaced or removed."""

import json
import os
import re
import socket
import stat
from contextlib import closing, suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fgsched
from fgsched import codec
from fgsched.accounting.backup import archive, back_up
from fgsched.accounting.ledger import Ledger
from fgsched.cli import hint
from fgsched.cli.batch import read_lines
from fgsched.cli.command import Command
from fgsched.cli.cron import install_units
from fgsched.cli.install import slurmnames
from fgsched.cli.install.carry import Carrier, Manifest
from fgsched.cli.install.plan import Make, Want
from fgsched.domain import text
from fgsched.domain.errors import Exit, FgschedError, Refused, StorageError, Unreachable
from fgsched.domain.job import Request
from fgsched.gpus.nvidia import FACTS
from fgsched.hooks.filtering import MOST_OUTPUT, judged
from fgsched.hooks.programs import Ran
from fgsched.interactive import containers, link
from fgsched.launch.fence import FenceDirectory
from fgsched.mail import mailer
from fgsched.python import calls
from fgsched.simulate import workload
from fgsched.slurm import sinfo, tables
from fgsched.system import places
from fgsched.system.hostusers import HostUsers
from fgsched.system.paths import Paths
from fgsched.system.spaces import Scratch
from fgsched.system.unanswered import VALID, Unanswered, new_key
from fgsched.views.listing import TableColumn

UID, GID, OTHER = os.geteuid(), os.getegid(), 54321
as_root = pytest.mark.skipif(UID != 0, reason="only root can make files of others")
OLD = 1.0  # seconds since the epoch
NAMES = ["model-7b-v1-q4.gguf", "2024-01-02-log", "vmlinuz-6.1.0-18-amd64", f"{'a' * 32}-{new_key(1)}-1-1"]


def scratch(place):
    (place / "run").mkdir(exist_ok=True)
    (place / "tmp").mkdir(exist_ok=True)
    return Scratch(place / "run", f"{place}/tmp/fg-", for_all=True)


def file(path, content="x"):
    path.write_text(content)
    os.utime(path, (OLD, OLD))
    return path


# -- keys of fgsub ---------------------------------------------------------------------------------------


def squatted_above(run, data):
    run.mkdir()
    os.chmod(run, 0o777)
    (run / "unanswered").symlink_to(data)


def a_link(run, data):
    run.mkdir(0o700)
    (run / "unanswered").symlink_to(data)


def above_is_a_link(run, data):
    (data / "unanswered").mkdir(0o700)
    for name in NAMES:
        file(data / "unanswered" / name)
    run.symlink_to(data)


@pytest.mark.parametrize("squat", [squatted_above, a_link, above_is_a_link])
def test_no_file_is_removed_in_a_directory_that_another_user_chose(tmp_path, squat):
    (data := tmp_path / "data").mkdir(0o700)
    for name in NAMES:
        file(data / name)
    squat(run := tmp_path / "run", data)
    key = Unanswered(run / "unanswered", b"request", OLD + 10 * VALID)
    assert not key.is_kept
    assert set(NAMES) <= set(os.listdir(data))


def test_only_empty_files_with_the_exact_name_of_a_key_are_removed(tmp_path):
    run = tmp_path / "run"
    (there := run / "unanswered").mkdir(0o700, parents=True)
    run.chmod(0o700)
    for name in NAMES:
        file(there / name)
    file(there / f"{'b' * 32}-{new_key(1)}-1-1", "")
    assert Unanswered(there, b"request", OLD + 10 * VALID).is_kept
    left = os.listdir(there)
    assert set(NAMES) < set(left)
    assert len(left) == len(NAMES) + 1


# -- TMPDIRs ---------------------------------------------------------------------------------------------


def removed(root):
    for user in os.listdir(root):
        os.rmdir(f"{root}/{user}")
    os.rmdir(root)


def by_a_directory(root):
    os.mkdir(root, 0o755)
    os.chown(root, OTHER, OTHER)


def by_a_directory_with_the_users_name(root):
    by_a_directory(root)
    os.mkdir(f"{root}/{UID}", 0o777)


def by_a_file(root):
    open(root, "w").close()


def by_a_link(root):
    os.symlink("/etc", root)


SQUATS = [by_a_directory, by_a_directory_with_the_users_name, by_a_file, by_a_link]


@as_root
@pytest.mark.parametrize("squat", SQUATS)
def test_after_a_cleaner_and_a_squatter_jobs_run_below_a_new_name(tmp_path, squat):
    one = scratch(tmp_path)
    root = os.path.dirname(one.of(UID, GID))
    removed(root)
    squat(root)
    before = os.lstat(root)
    again = one.of(UID, GID)
    assert os.path.dirname(again) != root
    assert os.lstat(again).st_uid == UID
    assert os.lstat(os.path.dirname(again)).st_uid == UID
    assert os.lstat(root).st_mode == before.st_mode
    assert os.lstat(root).st_uid == before.st_uid
    assert again == one.of(UID, GID)


@as_root
def test_an_entry_of_another_user_in_place_of_a_users_directory_is_not_used(tmp_path):
    one = scratch(tmp_path)
    path = one.of(1001, 1001)
    os.rename(path, f"{path}.away")
    os.mkdir(path, 0o777)
    os.chown(path, OTHER, OTHER)
    again = one.of(1001, 1001)
    assert again != path
    assert os.lstat(again).st_uid == 1001
    assert os.lstat(path).st_uid == OTHER


@as_root
def test_what_is_exchanged_for_a_new_directory_is_not_given_away(tmp_path, monkeypatch):
    secret = file(tmp_path / "secret")
    one, make = scratch(tmp_path), os.mkdir

    def exchanged(name, mode=0o777, *, dir_fd=None):
        make(name, mode, dir_fd=dir_fd)
        if os.path.basename(name).startswith("new."):
            os.rmdir(name, dir_fd=dir_fd)
            os.symlink(secret, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", exchanged)
    with pytest.raises(PermissionError, match="only you can change"):
        one.of(OTHER, OTHER)
    assert secret.stat().st_uid == UID


def test_a_tmpdir_leaves_room_for_sockets_of_ray(tmp_path):
    name = os.path.basename(os.path.dirname(scratch(tmp_path).of(UID, GID)))
    assert len(f"/tmp/{name}/4294967294/999") <= 39


# -- files that are written where a person says ----------------------------------------------------------


@as_root
def test_another_users_link_on_the_way_is_refused(tmp_path):
    (target := tmp_path / "target").mkdir()
    os.symlink(target, tmp_path / "rep")
    os.lchown(tmp_path / "rep", OTHER, OTHER)
    for path in (tmp_path / "rep" / "index.html", tmp_path / "rep" / "more" / "index.html"):
        with pytest.raises(PermissionError, match=str(OTHER)):
            places.replace_file(path, b"x", make=True)
    assert os.listdir(target) == []


@as_root
def test_another_users_file_is_not_replaced(tmp_path):
    os.chown(file(tmp_path / "index.html"), OTHER, OTHER)
    with pytest.raises(PermissionError, match=str(OTHER)):
        places.replace_file(tmp_path / "index.html", b"y")
    assert os.listdir(tmp_path) == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "x"


def test_own_links_on_the_way_are_followed_and_a_link_at_the_end_is_replaced(tmp_path):
    (tmp_path / "target").mkdir()
    other = file(tmp_path / "other")
    (tmp_path / "relative").symlink_to("target")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    (tmp_path / "target" / "name").symlink_to(other)
    places.replace_file(tmp_path / "absolute" / "new" / ".." / "name", b"y", make=True)
    assert stat.S_ISREG(os.lstat(tmp_path / "target" / "name").st_mode)
    assert (tmp_path / "target" / "name").read_text() == "y"
    assert other.read_text() == "x"


def test_a_circle_of_links_is_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        places.replace_file(tmp_path / "a" / "name", b"y")


# -- what root writes where another user may have been ----------------------------------------------------


def backed_up(path):
    with closing(Ledger(path.parents[1] / "accounts.db")) as ledger:
        back_up(ledger.path, ledger.path, path)


def archived(path):
    with closing(Ledger(path.parents[1] / "accounts.db")) as ledger:
        archive(ledger, path, 0)


def named(path):
    slurmnames.install(path, {})


def carried(path, kind="file", text="text"):
    root = path.parents[1]
    want = Want(path=f"/{path.relative_to(root)}", kind=kind, about="", text=text, mode=0o755)
    Carrier(root, Manifest(root), lambda words: "").carry([Make(want)])


def carried_directory(path):
    carried(path, "directory")


def carried_link(path):
    carried(path, "link", "/elsewhere")


def units(path):
    install_units(path, {"a.timer": "text"})


WRITERS = [backed_up, archived, named, carried, carried_directory, carried_link, units]


@as_root
@pytest.mark.parametrize("write", WRITERS)
def test_what_root_writes_does_not_go_through_the_link_of_another_user(tmp_path, write):
    (target := tmp_path / "target").mkdir()
    os.symlink(target, tmp_path / "rep")
    os.lchown(tmp_path / "rep", OTHER, OTHER)
    with pytest.raises((FgschedError, OSError), match=rf"{OTHER}.*"):
        write(tmp_path / "rep" / "name")
    assert os.listdir(target) == []


@as_root
@pytest.mark.parametrize("write", [archived, carried])
def test_what_root_writes_is_not_a_file_of_another_user(tmp_path, write):
    (tmp_path / "rep").mkdir()
    os.symlink(tmp_path / "new", tmp_path / "rep" / "name")
    os.lchown(tmp_path / "rep" / "name", OTHER, OTHER)
    with pytest.raises((FgschedError, OSError), match=str(OTHER)):
        write(tmp_path / "rep" / "name")
    assert not (tmp_path / "new").exists()


def test_a_backup_leaves_nothing_but_itself(tmp_path):
    (tmp_path / "rep").mkdir()
    backed_up(tmp_path / "rep" / "name")
    assert os.listdir(tmp_path / "rep") == ["name"]
    assert stat.S_IMODE((tmp_path / "rep" / "name").stat().st_mode) == 0o600
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in os.listdir(tmp_path)} == {
        "accounts.db",
        "rep",
    }
    with pytest.raises(FgschedError, match="exists"):
        backed_up(tmp_path / "rep" / "name")


def test_a_file_that_was_exchanged_while_it_was_written_is_no_backup(tmp_path):
    writing = places.new_file(tmp_path / "name")
    writing.__enter__()
    (fresh,) = tmp_path.iterdir()
    fresh.unlink()
    fresh.write_text("y")
    with pytest.raises(PermissionError, match="exchanged"):
        writing.__exit__(None, None, None)
    with pytest.raises(ZeroDivisionError), places.new_file(tmp_path / "other") as new:
        new.write(b"%d" % (1 // 0))
    assert os.listdir(tmp_path) == ["name"]


@as_root
def test_hints_are_not_written_through_the_link_of_another_user(tmp_path, monkeypatch):
    (target := tmp_path / "target").mkdir()
    os.symlink(target, tmp_path / "home")
    os.lchown(tmp_path / "home", OTHER, OTHER)
    monkeypatch.setenv("FG_HOME", str(tmp_path / "home"))
    with pytest.raises(PermissionError, match=str(OTHER)):
        hint.remember(["2026-01-01 name"])
    assert os.listdir(target) == []
    monkeypatch.setenv("FG_HOME", str(tmp_path / "new"))
    hint.remember(["2026-01-01 name"])
    assert (tmp_path / "new" / "hints").read_text() == "2026-01-01 name\n"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def a_home_of(owner, path):
    (state := path / ".local/state/fgsched").mkdir(parents=True)
    for at in (state, *state.parents[:3]):
        os.chown(at, owner, owner)
    return state


def linked_by_its_user(state):
    os.symlink(state.parents[3] / "target", state / "calls")
    os.lchown(state / "calls", OTHER, OTHER)


def made_by_its_user(state):
    (state / "calls").mkdir()
    os.chown(state / "calls", OTHER, OTHER)


@as_root
@pytest.mark.parametrize("prepare", [linked_by_its_user, made_by_its_user, lambda state: None])
def test_root_makes_and_removes_no_calls_in_the_home_of_another_user(tmp_path, monkeypatch, prepare):
    """Its user could exchange a folder of root's, whose pickled function is executed."""
    (old := tmp_path / "target" / "call-old").mkdir(parents=True)
    state = a_home_of(OTHER, tmp_path / "home")
    prepare(state)
    root = state / "calls"
    before = sorted(tmp_path.rglob("*"))
    facts = calls.CallFacts(name="f", python="", version="", path=[], keep=0)
    with pytest.raises(StorageError, match="The call was not submitted"):
        calls.create(root, "call-new", facts, {})
    assert calls.expired(root, now=1e12) == {}
    calls.remove(root / "call-old")
    assert sorted(tmp_path.rglob("*")) == before
    calls.create(tmp_path / "own" / "calls", "call-new", facts, {})
    calls.note_job(tmp_path / "own" / "calls" / "call-new", 7)
    assert calls.expired(tmp_path / "own" / "calls", now=1e12) == {tmp_path / "own/calls/call-new": 7}
    calls.remove(tmp_path / "own" / "calls" / "call-new")
    assert os.listdir(tmp_path / "own" / "calls") == []
    assert old.exists()


@as_root
@pytest.mark.parametrize("link", [False, True])
def test_root_makes_no_state_and_no_fence_in_the_home_of_another_user(tmp_path, link):
    """Its user could exchange the script that a job of root's executes."""
    state = a_home_of(OTHER, tmp_path / "home")
    state.rmdir()
    if link:
        state.parent.rmdir()
        state.parent.symlink_to(tmp_path)
        os.lchown(state.parent, OTHER, OTHER)
    before = sorted(tmp_path.rglob("*"))
    paths = Paths.find({"HOME": str(tmp_path / "home")}, UID)
    with pytest.raises(Unreachable, match=f"uid {OTHER}"):
        paths.prepare(UID)
    with pytest.raises(Refused, match=f"uid {OTHER}"), FenceDirectory(paths.run / "fence").locked():
        pass
    assert sorted(tmp_path.rglob("*")) == before
    own = Paths.find({"HOME": str(tmp_path)}, UID)
    own.prepare(UID)
    with FenceDirectory(own.run / "fence").locked():
        assert (own.run / "fence" / "job").is_dir()


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_directories_that_are_made_have_their_exact_mode(tmp_path, mask):
    before = os.umask(mask)
    try:
        with places.folder(tmp_path / "a" / "b", make=True, mode=0o711):
            pass
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o711, 0o711]


def test_an_error_names_the_path_that_the_caller_named(tmp_path):
    (tmp_path / "name").mkdir()
    with pytest.raises(IsADirectoryError, match=f"'{tmp_path}/name'"):
        places.replace_file(tmp_path / "name", b"x")
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/none'"):
        places.replace_file(tmp_path / "none" / "name", b"x")


# -- sockets ---------------------------------------------------------------------------------------------


def test_the_address_of_a_socket_does_not_tell_its_name():
    name = link.new_name()
    with link.listen(name) as listener:
        address = listener.addresses[0]
        assert name.encode() not in address
        assert b"fgrun" not in address
        with link.listen(link.attach_name(name)) as attach:
            assert not attach.addresses[0].startswith(address)
        with link.connect(name):
            accepted = listener.accept()
            assert accepted is not None
            accepted.close()


@as_root
def test_connections_of_another_user_leave_room_for_the_agent():
    name = link.new_name()
    with link.listen(name) as listener:
        child = os.fork()
        if not child:
            os.setuid(OTHER)
            strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
            for stranger in strangers:
                stranger.connect(listener.addresses[0])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with link.connect(name):
            accepted = next(filter(None, (listener.accept() for _ in range(101))))
            accepted.close()


# -- text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [r"train \ud83d", r"\udfff", r"a\ud83db", r"a\u0000b"])
@pytest.mark.parametrize("field", ["name", "comment", "account"])
def test_a_filters_answer_that_has_no_utf8_is_refused(words, field):
    with pytest.raises(FgschedError, match="no JSON"):
        judged(Request(name="job"), Ran(number=1, status=0, output=f'{{"request":{{"{field}":"{words}"}}}}'))


@pytest.mark.parametrize("words", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_refused(words):
    with pytest.raises(FgschedError, match="no JSON"):
        judged(Request(name="job"), Ran(number=1, status=0, output=f'{{"request":{{"time_limit":{words}}}}}'))


def test_a_refusal_cannot_control_the_terminal():
    with pytest.raises(FgschedError) as refused:
        judged(Request(name="job"), Ran(number=1, status=1, output="no\x1b[2J\x9b1m\u202e"))
    assert refused.value.cause.isprintable()


BAD_JSON = {  # -> words of the reason
    r'"\ud83d"': "half of a surrogate pair",
    r'"a\u0000"': "a text has a NUL",
    r'{"a\ud83d": 1}': "half of a surrogate pair",
    "[NaN]": "NaN is no number of JSON",
    "-Infinity": "-Infinity is no number of JSON",
    "1e999": "1e999 is no number of JSON",
    "[" * 9999: "too many levels",
    "{": "Expecting property name",
    b'"\xff"': "can't decode byte 0xff",
    "9" * 5000: "limit",
}


@pytest.mark.parametrize("words", BAD_JSON)
def test_json_of_others_is_read_in_one_place_which_refuses_what_cannot_be_stored(words):
    with pytest.raises(ValueError, match=BAD_JSON[words]):
        text.read_json(words)


@pytest.mark.parametrize("words", ["[1.5, null]", '"\\ud83d\\ude00"', '"\\udc80"', b'{"a": 1e300}'])
def test_json_that_can_be_stored_is_read(words):
    assert text.read_json(words) == json.loads(words)


def test_no_other_module_reads_json_of_others():
    package = Path(fgsched.__file__).parent
    reading = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text())
    }
    own = {f"store/{name}.py" for name in ("files", "recovering", "rows", "schema", "store")} | {
        "python/task.py",
        "python/outcomes.py",
    }  # what fgsched has written
    assert reading == own | {"domain/text.py", "codec.py"}


@pytest.mark.parametrize(
    "session", [r'{"refusal": "\ud83d"}', "[]", "{", '{"limits": [[NaN]]}', '{"limits": 3}', "[" * 9999]
)
def test_an_answer_about_an_account_that_cannot_be_read_is_none(session):
    class Answers:
        def read(self):
            return [b"7 7 7 61 2f 61\n" + session.encode(), b"8"]

    accounts = HostUsers(Answers())
    accounts._sent[7] = 0.0
    accounts._helper.rest = lambda: None
    accounts.receive()
    assert accounts.cached(7) is None
    assert accounts._answers.keys() == {8}


def test_what_a_mail_server_says_cannot_control_the_terminal_of_who_reads_the_log(capsys):
    mailer._log("mail 1: 550 no\x1b[2J\x9b1m\u202e\nforged line")
    said = capsys.readouterr().err
    assert said.endswith("forged line\n")
    assert said[:-1].isprintable()


@pytest.mark.parametrize("output", ['{"request": {"comment": "', '{"request": {}}' + " " * 10 + "x"])
def test_an_answer_of_a_filter_that_was_cut_at_its_bound_is_refused(output):
    with pytest.raises(FgschedError, match="no JSON"):
        judged(Request(name="job"), Ran(number=1, status=0, output=output.ljust(MOST_OUTPUT, "a")))


@pytest.mark.parametrize("words", ["train \ud83d", "\udfff\udc80", "a\ud83db"])
def test_what_an_older_version_has_stored_is_shown_with_an_escape(words):
    assert "\\ud" in json.loads(codec.encode({"name": words}))["name"]


# -- what a person types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", ["999999999999", "9" * 5000, "10001"])
def test_no_width_of_a_format_uses_all_memory(digits):
    assert text.column_width(digits) == 10_000
    assert text.column_width("") == 0
    assert sinfo._of_letters(f"%.{digits}N").pieces[0].width == 10_000
    assert tables.columns(f"user%-{digits}", [TableColumn("User", str)], owner="").pieces[0].width == 10_000


@pytest.mark.parametrize("form", ["{}", "--install={}", "--output={}/more"])
def test_a_path_that_a_person_names_is_no_internal_error(tmp_path, form):
    there = file(tmp_path / "there")

    @click.command(cls=Command)
    @click.option("--install", expose_value=False)
    @click.option("--output", expose_value=False)
    @click.argument("words", nargs=-1)
    def tried(words):
        os.listdir(there / "more")

    done = CliRunner().invoke(tried, [form.format(there)])
    assert (done.exit_code, "Not a directory" in done.stderr, "internal" in done.stderr) == (1, True, False)
    assert CliRunner().invoke(tried, ["elsewhere"], env={"FG_DEBUG": None}).exit_code == Exit.INTERNAL


TRACE = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\na,1000,10,1,500,{},{}\n"


@pytest.mark.parametrize("bad", ["NaN", "inf", "1e999", "x"])
def test_a_number_of_a_trace_that_is_none_is_refused_with_its_line(bad):
    with pytest.raises(FgschedError, match=r"log: line 2: .*_time"):
        workload.read("log", TRACE.format("1", bad))
    with pytest.raises(FgschedError, match="log: line 2: num_gpu"):
        workload.read("log", TRACE.replace(",1,500", f",{bad},500").format("1", "2"))


def test_files_of_people_may_begin_with_a_byte_order_mark(tmp_path):
    assert len(workload.read("log", "\ufeff" + TRACE.format("1", "2")).tasks) == 1
    mark = "\ufeff"
    assert read_lines(str(file(tmp_path / "list", f"{mark}--wrap true\n")), None)[1][0] == "--wrap true"


def test_a_container_needs_no_tmpdir():
    assert containers._environment({"FG_JOB_DIR": "/none"}, FACTS)["TMPDIR"] == "/tmp"


@pytest.mark.parametrize("kind", ["pipe", "endless", "link", "foreign"])
def test_a_file_in_the_home_of_a_user_stops_no_command_of_root_that_reads_it(tmp_path, monkeypatch, kind):
    """As with sudo, which may keep HOME."""
    place = tmp_path / "hints"
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "endless":
            place.symlink_to("/dev/zero")
        case "link":
            (tmp_path / "secret").write_text("secret")
            place.symlink_to("secret")
        case "foreign":
            place.write_text("text")
            if os.geteuid() == 0:
                os.chown(place, OTHER, OTHER)
            else:
                pytest.skip("needs uid 0")
    with pytest.raises(OSError, match=r"no regular file|Too many|belongs to"):
        places.read_own(place, 100)
    monkeypatch.setenv("FG_HOME", str(tmp_path))
    assert hint.print_hint(None, 1, "n") is None
    with suppress(Refused):
        install_units(tmp_path, {"hints": "written"})


def by_nothing(home, root):
    del home, root


def by_a_link_of_the_user(home, root):
    (home / ".local").symlink_to(root)
    os.chown(home / ".local", OTHER, OTHER, follow_symlinks=False)


def by_a_directory_of_the_user(home, root):
    del root
    for part in (".local", ".local/state", ".local/state/fgsched"):
        (home / part).mkdir(0o755)
        os.chown(home / part, OTHER, OTHER)


@as_root
@pytest.mark.parametrize("prepare", [by_nothing, by_a_link_of_the_user, by_a_directory_of_the_user])
def test_a_command_of_root_with_the_variables_of_a_user_leaves_nothing_in_the_home_of_the_user(
    tmp_path, monkeypatch, prepare
):
    """As with `su`, which may keep HOME. A directory of root's there would stop programs of the user."""
    home, root = tmp_path / "home", tmp_path / "root"
    home.mkdir()
    root.mkdir()
    os.chown(home, OTHER, OTHER)
    prepare(home, root)
    before = sorted(home.rglob("*"))
    monkeypatch.delenv("FG_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    with pytest.raises(PermissionError):
        hint.remember(["2026-11-28 name"])
    assert not Unanswered(home / ".local/state/fgsched/run/unanswered", b"request", OLD).is_kept
    with closing(link.listen("name", home / ".local/state/fgsched/run/callers")) as listener:
        assert len(listener.addresses) == 1
    assert (sorted(home.rglob("*")), os.listdir(root)) == (before, [])


def test_an_own_file_is_read_to_a_bound(tmp_path):
    (tmp_path / "own").write_bytes(b"a" * 200)
    assert places.read_own(tmp_path / "own", 100) == b"a" * 100
    assert places.read_own(tmp_path / "none", 100) == b""
