"""The output of a job on its page: which files are opened, how much is read, and what is added."""

import os

import pytest

from fgsched.domain.job import Request
from fgsched.domain.states import JobState
from fgsched.protocol import JobInfo
from fgsched.web.output import MOST_BACK, STEP, Follower, opened, plain, tail_of


def job_of(path, **more):
    request = Request(name="train", chdir=str(path.parent), output=path.name, error="errors")
    usual = {"id": 7, "user": "ann", "uid": os.geteuid(), "state": JobState.RUNNING, "attempt": 1}
    return JobInfo(request=request, **(usual | more))


def tail(path, **more):
    return tail_of(job_of(path, **more), "output", os.geteuid())


@pytest.fixture
def out(tmp_path):
    path = tmp_path / "out"
    path.write_text("first\nlast\n")
    return path


def test_the_end_of_a_file_is_shown(out):
    shown = tail(out)
    assert (shown.text, shown.size, shown.end, shown.trouble) == ("first\nlast\n", 11, 11, "")


def test_the_errors_have_a_file_of_their_own(out):
    (out.parent / "errors").write_text("oops\n")
    assert tail_of(job_of(out), "errors", os.geteuid()).text == "oops\n"


def test_a_file_of_another_user_or_of_a_hidden_job_is_not_opened(out):
    assert tail_of(job_of(out), "output", os.geteuid() + 1) is None
    assert tail(out, is_private=True) is None


def test_a_link_is_not_followed(out, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/etc/passwd")
    assert tail(link).trouble == "it is a symbolic link"
    os.symlink(out, tmp_path / "to-own")
    assert tail(tmp_path / "to-own").trouble == "it is a symbolic link"


def test_nothing_but_a_regular_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "folder"):
        assert tail(tmp_path / name).trouble == "it is not a regular file"
    for path in (
        "/dev/null",
        "/proc/self/environ",
        "/proc/self/mem",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ):
        if os.path.exists(path):
            with pytest.raises(OSError, match="not a regular file"):
                opened(path)


def test_a_missing_file_is_named(tmp_path):
    shown = tail(tmp_path / "none")
    assert (shown.trouble, shown.path) == ("there is no such file", str(tmp_path / "none"))


def test_of_ten_gigabytes_the_end_is_read(tmp_path):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast line\n")
    shown = tail(path)
    assert shown.text == "last line\n"
    assert shown.size == shown.end == path.stat().st_size


def test_a_line_that_begins_earlier_is_left_out(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"x" * STEP + b"\nwhole\n")
    assert tail(path).text == "whole\n"


def follower_of(path):
    shown = tail(path)
    return Follower(str(path), shown.file, shown.end)


def test_what_is_added_is_read_once(out):
    follower = follower_of(out)
    assert follower.step() is None
    with open(out, "a") as file:
        file.write("more\n")
    addition = follower.step()
    assert (addition.text, addition.is_new, addition.end) == ("more\n", False, 16)
    assert follower.step() is None


def test_a_character_that_is_written_in_two_parts_is_one(out):
    follower = follower_of(out)
    with open(out, "ab", buffering=0) as file:
        file.write("é".encode()[:1])
        assert follower.step().text == ""
        file.write("é".encode()[1:])
    assert follower.step().text == "é"


def test_a_file_that_is_replaced_or_truncated_begins_again(out):
    follower = follower_of(out)
    other = out.with_name("other")
    other.write_text("another file\n")
    other.rename(out)
    addition = follower.step()
    assert (addition.text, addition.is_new) == ("another file\n", True)
    out.write_text("cut\n")
    addition = follower.step()
    assert (addition.text, addition.is_new) == ("cut\n", True)


def test_a_file_that_becomes_a_link_is_not_followed(out):
    follower = follower_of(out)
    out.unlink()
    out.symlink_to("/etc/passwd")
    assert follower.step() is None


def test_a_step_is_64_kib_and_a_flood_is_cut(out):
    follower = follower_of(out)
    with open(out, "ab") as file:
        file.write(b"a" * (STEP + 10))
    assert [len(follower.step().text), len(follower.step().text)] == [STEP, 10]
    with open(out, "ab") as file:
        file.write(b"b" * (MOST_BACK + 2 * STEP))
    addition = follower.step()
    assert (len(addition.text), addition.is_new, addition.end) == (STEP, True, out.stat().st_size)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m\n", "red\n"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link", "link"),
        ("10 %\r20 %\r\nend\n", "10 %\n20 %\nend\n"),
        ("a\tb", "a\tb"),
        ("bell\x07 \x00nul \u202ebidi", "bell? ?nul ?bidi"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),  # a text node; the template escapes it
    ],
)
def test_output_is_text_without_control_characters(text, shown):
    assert plain(text) == shown
