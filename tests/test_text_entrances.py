"""Text of others, at each place where it enters: it is refused or stored, and never harms a reader of it."""

import json
import os
import secrets
import socket

import pytest

from live_host import Done, living

BAD = {
    "no UTF-8": b"a\xff\xfeb",
    "an overlong form": b"a\xc0\xafb",
    "half of a surrogate pair": b"a\xed\xa0\xbdb",
    "escapes of a terminal": b"a\x1b[2J\x1b]0;title\x07b",
    "a control character of eight bits": b"a\xc2\x9b2Jb",
    "a change of direction": "a\u202e\u2066b".encode(),
    "a line break": b"a\nb\rc",
    "a character without a width": "a\u200b\ufeffb".encode(),
}
TAKEN_OR_REFUSED = {0, 1, 2, 3}  # exit statuses: done, refused, bad usage, no such job
READERS = [
    ("fgq", "-t", "all"),
    ("fgq", "--json"),
    ("fgq", "-O", "Name:60,Comment:60,WorkDir:99"),
    ("fgacct", "-a", "-o", "JobID,JobName%60,Comment%60,WorkDir%99"),
    ("fgacct", "-a", "--json"),
    ("fgctl", "show", "job"),
    ("fgeff", "1"),
    ("squeue", "-o", "%A %j %k %Z"),
    ("sacct", "-a"),
    ("scontrol", "show", "job"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("text") / "home") as made:
        made.submit(hold=True)
        yield made


def run(home, command, *words, **more):
    """Run a command with any bytes as words."""
    done = home.run(command, *map(os.fsdecode, words), text=False, errors=None, **more)
    assert b"Traceback" not in done.err, done.err
    assert b"internal error" not in done.err, done.err
    return done


def script(home, text, header=b""):
    path = home.path / f"{secrets.token_hex(4)}.sh"
    path.write_bytes(b"#!/bin/sh\n" + header + b"true " + text.replace(b"\n", b" ") + b"\n")
    return path


# -- each entrance yields what the commands, or the controller, did and said ------------------------------


def as_option(home, text):
    for option in ("--job-name", "--comment", "--output", "--dependency"):
        yield run(home, "fgsub", "--hold", option.encode() + b"=" + text, "--wrap", "true")


def as_header(home, text):
    header = b"#FG --job-name=" + text + b"\n#FG --comment='" + text + b"'\n"
    yield run(home, "fgsub", "--hold", script(home, b"", header))


def as_arguments(home, text):
    yield run(home, "fgsub", "--hold", script(home, text), text)


def as_name_of_a_script(home, text):
    path = os.fsencode(home.path) + b"/" + text
    with open(path, "wb") as file:
        file.write(b"#!/bin/sh\ntrue\n")
    yield run(home, "fgsub", "--hold", path)


def as_directory(home, text):
    os.makedirs(path := os.fsencode(home.path) + b"/d" + text, exist_ok=True)
    yield run(home, "fgsub", "--hold", b"--chdir=" + path, "--wrap", "true")


def as_variable(home, text):
    env = {"FGSUB_JOB_NAME": os.fsdecode(text), "ODD": os.fsdecode(text)}
    yield run(home, "fgsub", "--hold", "--wrap", "true", env=env)


def as_list(home, text):
    path = home.path / "list"
    path.write_bytes(b"--hold --job-name='" + text.replace(b"\n", b" ") + b"' --wrap true\n")
    yield run(home, "fgsub", "--batch", path)


def as_change(home, text):
    yield run(home, "fgctl", "update", "job=1", b"name=" + text, b"comment=" + text)


def as_request(home, text):
    """Send it beside half of a surrogate pair, which is always refused."""
    request = {"name": "NAME", "comment": "COMMENT", "chdir": "/"}
    message = {
        "v": 2,
        "op": "submit",
        "key": secrets.token_hex(16),
        "requests": [request],
        "environments": [{}],
    }
    message |= {"scripts": ["#!/bin/sh\n"], "jobs": [[0, 0, 0, True]]}
    line = (
        json.dumps(message)
        .encode()
        .replace(b"NAME", text.replace(b"\n", b""))
        .replace(b"COMMENT", b"\\ud83d")
    )
    with socket.socket(socket.AF_UNIX) as caller, caller.makefile("rb") as answers:
        caller.connect(str(home.paths.socket))
        caller.sendall(line + b"\n")
        answer = answers.readline()
    yield Done(json.loads(answer)["error"]["exit"], answer, b"")


def as_configuration(home, text):
    place = home.path / "other"
    place.mkdir(mode=0o700, exist_ok=True)
    (place / "fgsched.toml").write_bytes(b"# " + text + b"\n[partitions.'" + text + b"']\n")
    yield run(home, "fgsched", "config", "--check", env={"FG_HOME": str(place)})


def as_words_of_a_question(home, text):
    for words in (
        ("fgq", "-u", text),
        ("fgq", "-j", text),
        ("fgacct", "-j", text),
        ("fgctl", "show", "job", text),
    ):
        yield run(home, *words)


ENTRANCES = [
    *(as_option, as_header, as_arguments, as_name_of_a_script, as_directory, as_variable, as_list, as_change),
    *(as_request, as_configuration, as_words_of_a_question),
]


def is_harmless(said):
    """Return the text, which a terminal and a reader of UTF-8 can take."""
    text = said.decode()  # strictly
    harmful = {char for char in text if not char.isprintable() and char not in "\n\t"}
    assert not harmful, text
    return text


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("enter", ENTRANCES)
def test_what_cannot_be_shown_is_refused_or_escaped_wherever_it_enters(home, enter, kind):
    for done in enter(home, BAD[kind]):
        assert done.status in TAKEN_OR_REFUSED
        said = is_harmless(done.out + done.err)
        assert said or not done.status, "a refusal has a reason"


@pytest.fixture(scope="module")
def filled(home):
    for enter in ENTRANCES:
        for kind in ("no UTF-8", "escapes of a terminal", "a change of direction"):
            assert all(done.status in TAKEN_OR_REFUSED for done in enter(home, BAD[kind]))
    return home


@pytest.mark.parametrize("words", READERS)
def test_whatever_has_entered_each_list_is_shown_and_can_be_read(filled, words):
    done = run(filled, *words)
    assert (done.status, done.err) == (0, b"")
    text = is_harmless(done.out)
    assert text
    if "--json" in words:
        json.loads(text)


def test_all_is_read_by_the_next_controller(home):
    assert run(home, "fgsched", "stop").status == 0
    home.disconnect()
    assert run(home, "fgq", "--json").status == 0
