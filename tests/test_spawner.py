"""fgspawn, from a message to a running script: the claim, the streams, what the script inherits."""

import errno
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from fgshim import spawner as program
from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import APPEND, NO_NEW_PRIVILEGES, Gate, Spawner, result_text, spawning

pytestmark = NEEDS_SPAWNER


def test_the_program_needs_nothing_of_python():
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", program()], capture_output=True, text=True
    ).stdout
    assert "Py" not in symbols
    libraries = subprocess.run(["ldd", program()], capture_output=True, text=True)
    needed = {line.split()[0].split("/")[-1] for line in libraries.stdout.splitlines() if "=>" in line}
    assert needed <= {"libc.so.6"}


def test_the_program_says_how_it_is_started():
    run = subprocess.run([program()], capture_output=True, text=True)
    assert (run.returncode, run.stderr.splitlines()[0]) == (2, "usage: fgspawn DESCRIPTOR")


def test_a_script_runs_with_its_arguments_in_its_directory(spawner, tmp_path):
    job = spawner.launch('#!/bin/sh\necho "$0|$1|$2|$A|$(pwd)"\n', args=("x y", ""), env={"A": "b c"})
    assert job.result().cause == "exit"
    assert job.output() == f"{job.wish.directory}/script|x y||b c|{tmp_path}\n"


def test_the_claim_names_the_shepherd_as_the_answer_does(spawner, tmp_path):
    job = spawner.launch("#!/bin/sh\n")
    job.over()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    claim = os.readlink(tmp_path / "run/claim/1.1")
    assert claim == f"P:{job.answer.pid}:{job.answer.ticks}:{boot}"
    assert job.answer.ticks > 0


@pytest.mark.parametrize("mark", ["T", "P:1:2:other-boot"])
def test_a_job_whose_claim_is_taken_does_not_run(spawner, tmp_path, mark):
    (tmp_path / "run/claim/1.1").symlink_to(mark)
    job = spawner.launch("#!/bin/sh\necho ran\n")
    job.over()
    assert job.answer.errno == errno.EEXIST
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "run/job").iterdir()) == list((tmp_path / "run/result").iterdir()) == []


@pytest.mark.parametrize("code", [0, 1, 2, 7, 126, 127, 128, 137, 255])
def test_the_exit_status_is_kept_exactly(spawner, code):
    result = spawner.launch(f"#!/bin/sh\nexit {code}\n").result()
    assert (result.status, result.cause, result.lost, result.detail) == (code << 8, "exit", 0, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_signal_that_ended_it_is_kept(spawner, number):
    assert spawner.launch(f"#!/bin/sh\nkill -{number:d} $$\n").result().exit_code == -number


def test_nothing_of_a_job_stays_but_claim_result_and_an_empty_directory(spawner, tmp_path):
    private = tmp_path / "private"
    job = spawner.launch(
        '#!/bin/sh\nmkdir -p "$TMPDIR/a/b"; : >"$TMPDIR/a/b/c"; ln -s / "$TMPDIR/l"; chmod 0 "$TMPDIR/a/b"\n'
        'ls -ld "$TMPDIR"; : >"$(dirname $0)/extra"\n',
        tmpdir=str(private), env={"TMPDIR": str(private), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert job.result().exit_code == 0
    assert job.output().startswith("drwx------")
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    kept = {"out", "private", "run", "run/job", "run/claim", "run/claim/1.1", "run/result", "run/result/1.1"}
    spare = f"run/spare/{spawner.process.pid}.1"  # of the shepherd, and not of the job
    assert left == kept | {"run/spare", f"{spare}.claim", f"{spare}.result"}


def test_a_job_has_descriptors_0_1_2_and_no_other(spawner):
    job = spawner.launch("#!/bin/sh\nfor fd in /proc/$$/fd/*; do [ -e $fd ] && echo ${fd##*/}; done\n")
    job.over()
    shells_own = {"10", "255"}  # the script itself, as sh and bash read it
    assert set(job.output().split()) - shells_own == {"0", "1", "2"}


def test_no_signal_is_blocked_or_ignored(tmp_path):
    old = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with spawning(tmp_path) as one:
            job = one.launch(f"#!{shutil.which('cat')}\n", args=("/proc/self/status",))
            job.over()
    finally:
        signal.signal(signal.SIGUSR2, old)
    words = dict(line.split(":\t", 1) for line in job.output().splitlines() if ":\t" in line)
    assert (words["SigIgn"], words["SigBlk"]) == ("0" * 16, "0" * 16)


def test_the_umask_is_that_of_the_submission(spawner, tmp_path):
    job = spawner.launch("#!/bin/sh\numask; : > made\n", umask=0o027)
    job.over()
    assert job.output() == "0027\n"
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_limits_are_set_and_never_above_the_hard_one_in_force(spawner):
    job = spawner.launch("#!/bin/sh\nulimit -Sn; ulimit -Hn; ulimit -c\n", rlimits=((7, 50, 60), (4, 0, -1)))
    job.over()
    assert job.output() == "50\n60\n0\n"


def test_new_privileges_can_be_ruled_out(spawner):
    job = spawner.launch("#!/bin/sh\ngrep NoNewPrivs /proc/self/status\n", flags=NO_NEW_PRIVILEGES,
                         env={"PATH": os.environ["PATH"]})  # fmt: skip
    job.over()
    assert job.output() == "NoNewPrivs:\t1\n"


def test_the_job_leads_a_session_of_its_own(spawner):
    job = spawner.launch("#!/bin/sh\nread -r line </proc/$$/stat\necho $$ ${line##*)}\n")
    job.over()
    pid, _, parent, group, session = job.output().split()[:5]
    assert pid == group == session
    assert parent == str(job.answer.pid)


def test_output_is_truncated_or_appended_as_asked(spawner, tmp_path):
    (tmp_path / "out").write_text("old\n")
    spawner.launch("#!/bin/sh\necho one\n").over()
    assert (tmp_path / "out").read_text() == "one\n"
    spawner.launch("#!/bin/sh\necho two\n", attempt=2, flags=APPEND).over()
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_stderr_joins_stdout_or_has_a_file_of_its_own(spawner, tmp_path):
    script = "#!/bin/sh\necho o; echo e >&2; echo o\n"
    spawner.launch(script).over()
    assert (tmp_path / "out").read_text() == "o\ne\no\n"
    spawner.launch(script, job=2, stderr="err").over()
    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("o\no\n", "e\n")


def test_stdin_is_a_file_or_nothing(spawner, tmp_path):
    (tmp_path / "in").write_text("from a file\n")
    script = '#!/bin/sh\nread -r line; echo "$? $line"\n'
    spawner.launch(script, stdin="in").over()
    assert (tmp_path / "out").read_text() == "0 from a file\n"
    spawner.launch(script, job=2).over()
    assert (tmp_path / "out").read_text() == "1 \n"


def test_a_link_of_the_users_own_is_followed(spawner, tmp_path):
    (tmp_path / "real").write_text("")
    (tmp_path / "out").symlink_to("real")
    spawner.launch("#!/bin/sh\necho through\n").over()
    assert (tmp_path / "real").read_text() == "through\n"


def test_devices_will_do_for_output(spawner):
    result = spawner.launch("#!/bin/sh\necho gone && exit 3\n", stdout="/dev/null").result()
    assert result.exit_code == 3


@pytest.mark.parametrize("reader", [False, True])
def test_a_fifo_is_refused_as_output_without_a_hang(spawner, tmp_path, reader):
    if reader:
        Gate(tmp_path / "pipe")
    else:
        os.mkfifo(tmp_path / "pipe")
    result = spawner.launch("#!/bin/sh\n", stdout="pipe").result()
    assert (result.cause, result.status, result.detail) == (
        "launch",
        127 << 8,
        "open pipe: not a regular file",
    )
    assert result.errno


@pytest.mark.parametrize(
    ("fields", "number", "detail"),
    [
        ({"stdout": "."}, errno.EISDIR, "open .: not a regular file"),
        ({"stdin": "."}, errno.EINVAL, "open .: not a regular file"),
        ({"stdout": "no/such/out"}, errno.ENOENT, "open no/such/out"),
        ({"cwd": "/no/such/place"}, errno.ENOENT, "chdir /no/such/place"),
        ({"hook": "/no/such/hook.so"}, errno.ENOENT, "read hook /no/such/hook.so"),
        ({"tmpdir": "/no/such/tmp"}, errno.ENOENT, "mkdir /no/such/tmp"),
        ({"script": b"#!/bin/bsh -e\necho\n"}, errno.ENOENT, "exec /bin/bsh"),
        ({"script": b"#!/bin/sh\r\necho\n"}, errno.ENOENT, "exec /bin/sh?"),
        ({"script": b"echo no interpreter\n"}, errno.ENOEXEC, "exec script"),
        ({"cgroups": (("/no/such/group", ()),)}, errno.ENOENT, "cgroup /no/such/group"),
    ],
)
def test_what_cannot_be_started_says_why(spawner, fields, number, detail):
    fields = {"script": b"#!/bin/sh\n", **fields}
    result = spawner.launch(**fields).result()
    assert (result.cause, result.errno, result.detail) == ("launch", number, detail)
    assert list((spawner.run / "job").iterdir()) == []


@pytest.mark.parametrize("shift", range(3))
def test_a_result_is_cut_between_two_characters_and_fits_every_file_system(spawner, tmp_path, shift):
    """XFS, and ext4 with blocks of 1 KiB, take 1,023 bytes in a symbolic link."""
    missing = "x" * shift + "/".join(["数据" * 35] * 6)
    result = spawner.launch("#!/bin/sh\n", stdout=missing).result()
    length = len(result_text(tmp_path / "run/result/1.1"))
    assert 997 < length <= 1000
    assert f"open {missing}".startswith(result.detail)
    assert (result.cause, result.errno) == ("launch", errno.ENOENT)


def test_the_detail_of_a_result_is_always_text(spawner, tmp_path):
    name = b"no/b\xe4r \xed\xb3\xa9 \xf0\x80\x80\x80 \xc2\x85 \x1b \xe6\x95\xb0 \xe6\x95"
    spawner.launch("#!/bin/sh\n", stdout=os.fsdecode(name)).over()
    detail = result_text(tmp_path / "run/result/1.1").split(b" ", 19)[19]
    assert detail.decode() == "open no/b?r ??? ???? ?? ? 数 ??"


def test_the_reason_is_also_the_last_line_of_the_output(spawner, tmp_path):
    spawner.launch("#!/bin/bsh\n", job=17).over()
    line = "fgsched: job 17: could not be started: exec /bin/bsh: No such file or directory\n"
    assert (tmp_path / "out").read_text() == line


def test_a_job_that_could_not_start_leaves_its_private_directory_empty(spawner, tmp_path):
    spawner.launch("#!/bin/bsh\n", tmpdir=str(tmp_path / "private")).over()
    assert list((tmp_path / "private").iterdir()) == []


def test_a_private_directory_is_empty_for_its_next_job_and_closed_to_others(spawner, tmp_path):
    private = tmp_path / "private"
    private.mkdir()
    private.chmod(0o755)
    (private / "left").write_text("by a job that was never tidied up after")
    job = spawner.launch(f"#!/bin/sh\nls -A {private}; ls -ld {private}\n", tmpdir=str(private))
    assert job.result().exit_code == 0
    assert job.output().startswith("drwx------")


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/"), lambda path: path.touch()])
def test_what_a_user_puts_in_the_place_of_a_private_directory_gives_way(spawner, tmp_path, make):
    make(tmp_path / "private")
    result = spawner.launch("#!/bin/sh\n", tmpdir=str(tmp_path / "private")).result()
    assert result.exit_code == 0
    assert (tmp_path / "private").is_dir()
    assert not (tmp_path / "private").is_symlink()


def test_the_hook_lies_beside_the_region(spawner, tmp_path):
    (tmp_path / "hook.so").write_text("")
    job = spawner.launch(
        "#!/bin/sh\ncd ${0%/*}; readlink libfgshim.so; stat -c '%n %a %s' *; od -An -tx1 -N4 region\n",
        hook=str(tmp_path / "hook.so"), region=b"\x01\x02", region_size=10_000,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    job.over()
    assert job.output().split("\n") == [
        str(tmp_path / "hook.so"), "libfgshim.so 777 " + str(len(str(tmp_path / "hook.so"))),
        "region 600 10000", "script 500 " + str(len(job.wish.script)), " 01 02 00 00", "",
    ]  # fmt: skip


def test_two_attempts_of_a_job_are_two_claims_and_two_results(spawner):
    first = spawner.launch("#!/bin/sh\nexit 1\n", attempt=1).result()
    second = spawner.launch("#!/bin/sh\nexit 2\n", attempt=2).result()
    assert (first.exit_code, second.exit_code) == (1, 2)


def test_a_long_script_and_a_large_environment_fit(spawner):
    script = "#!/bin/sh\necho ${#BIG}\n" + "# filler\n" * 300_000 + "echo end\n"
    job = spawner.launch(script, env={"BIG": "x" * 100_000, **{f"V{i}": "v" for i in range(2000)}})
    assert job.result().exit_code == 0
    assert job.output() == "100000\nend\n"


def test_it_starts_with_its_standard_descriptors_closed(tmp_path):
    script = f'exec "{program()}" 3 <&- >&- 2>&-'
    ours, theirs = socket.socketpair()
    one = Spawner.__new__(Spawner)
    one.run, one.socket, one.notices = tmp_path / "run", ours, []
    for name in ("claim", "result", "job"):
        (one.run / name).mkdir(parents=True)
    shell = f"exec 3<&{theirs.fileno()}; {script}"
    one.process = subprocess.Popen(["bash", "-c", shell], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    theirs.close()
    job = one.launch("#!/bin/sh\nread -r line; echo $?\n")
    job.over()
    assert job.output() == "1\n"
    assert one.close() == b""
