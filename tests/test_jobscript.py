"""A script's text: accepted or refused, and its header lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgsched.domain.errors import BadUsage, FgschedError
from fgsched.lifecycle.jobscript import (
    SIZE_LIMIT,
    HeaderWords,
    Unclosed,
    accept,
    carries_headers,
    command_line,
    directives,
    header_words,
    shell_words,
)

HEAD = "#!/bin/bash\n"


def words(text, **options):
    found = directives(text, "train.sh", **options)
    return [(line.number, *line.words) for line in found.lines]


def warnings(text, **options):
    return list(directives(text, "train.sh", **options).warnings)


def refused(function, *args):
    with pytest.raises(BadUsage) as raised:
        function(*args)
    return raised.value.cause


# --- acceptance -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "train.sh is empty"),
        (b" \n\t\n", "train.sh contains only white space"),
        (
            b"echo\n",
            "train.sh is not a script: its first line must start with #! and the path of an interpreter,"
            " for example #!/bin/bash",
        ),
        (b"#!/bin/sh\r\necho\r\n", "train.sh: line 1 ends with CR LF (DOS); run dos2unix"),
        (b"#!/bin/sh\n#FG -G 1\r\necho\n", "train.sh: line 2 ends with CR LF (DOS); run dos2unix"),
        (b"#!/bin/sh\recho\r", "train.sh: line 1 ends with CR (old Mac); run mac2unix"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "train.sh: file starts with a byte order mark"),
        ("#!/bin/sh\n".encode("utf-16"), "train.sh looks like UTF-16"),
        ("#!/bin/sh\n".encode("utf-16-le"), "train.sh looks like UTF-16"),
        ("#!/bin/sh\n".encode("utf-16-be"), "train.sh looks like UTF-16"),
        (b"#!/bin/sh\n" + b"\n" * 5 + b"a\0b\n", "train.sh: NUL byte at line 7"),
        (b"#!" + b"x" * (12 << 20), "train.sh: script is 12.1 MiB; limit 4 MiB"),
    ],
)
def test_a_file_that_is_no_script_is_refused_by_name(data, message):
    assert refused(accept, "train.sh", data) == message


def test_a_file_without_an_interpreter_gets_three_parts_of_advice():
    with pytest.raises(BadUsage) as raised:
        accept("train.sh", b"python train.py\n")
    assert raised.value.remedy == "A command without a script: fgsub --wrap='COMMAND'"


def test_bytes_that_are_not_utf8_are_accepted_in_the_body():
    assert accept("train.sh", b"#!/bin/sh\necho \xff\xfe\n") is None


def test_a_script_of_exactly_the_limit_is_accepted():
    assert accept("train.sh", b"#!/bin/sh\n".ljust(SIZE_LIMIT, b"x")) is None


# --- which lines are headers ------------------------------------------------------------------------------


def test_options_of_header_lines_are_found_with_their_line():
    text = HEAD + "#FG --gpus=0.5 -t 10\n\n# a comment\n#FG\t--mem=4G\necho\n"
    assert directives(text, "train.sh").lines == (
        HeaderWords(2, ("--gpus=0.5", "-t", "10")),
        HeaderWords(5, ("--mem=4G",)),
    )
    assert directives(text, "train.sh").family == "FG"


@pytest.mark.parametrize("line", ["##FG --gpus=1", " #FG --gpus=1", "#FGFOO --gpus=1", "#fgsched is nice"])
def test_other_comments_are_skipped_silently(line):
    found = directives(HEAD + line + "\necho\n", "train.sh")
    assert (found.lines, found.warnings) == ((), ())


@pytest.mark.parametrize("line", ["\ufeff#FG --gpus=1", "\u00a0#SBATCH -G1", " \u200b #FG\t-G1"])
def test_a_header_behind_an_invisible_character_is_pointed_out(line):
    found = directives(HEAD + line + "\necho\n", "train.sh")
    said = "train.sh: line 2 looks like a header but begins with an invisible character; remove it"
    assert (found.lines, found.warnings) == ((), (said,))


@pytest.mark.parametrize(
    "line", ["# FG --gpus=1", "#fg --gpus=1", "#fg", "# fg -G1", "#FG\u00a0--gpus=1", "#\u3000FG \u200b-G1"]
)
def test_a_comment_that_looks_like_a_header_is_pointed_out(line):
    unread = directives(HEAD + line + "\necho\n").unread
    assert [(slip.number, slip.mark, slip.scheduler) for slip in unread] == [(2, "#FG", "")]


def test_prose_about_fg_is_no_header():
    assert warnings(HEAD + "# FG means fractional GPU\necho\n") == []


def test_the_prefix_needs_no_blank_before_a_dash():
    assert words(HEAD + "#FG--gpus=1\necho\n") == [(2, "--gpus=1")]


def test_scanning_stops_at_the_first_command():
    text = HEAD + "#FG -G1\necho\n#FG -t 5\n#FG -c 2\n"
    assert words(text) == [(2, "-G1")]
    assert warnings(text) == ["train.sh: line 4: #FG after the first command (line 3) is ignored"]


def test_blank_lines_and_lines_of_white_space_do_not_stop_it():
    assert words(HEAD + "\n \t\n#FG -G1\necho\n") == [(4, "-G1")]


def test_a_script_of_headers_alone_is_accepted_with_a_warning():
    text = HEAD + "#FG -G1\n"
    assert words(text) == [(2, "-G1")]
    assert warnings(text) == ["train.sh: no commands after the headers"]


@pytest.mark.parametrize("line", ["#FG", "#FG   ", "#FG # later"])
def test_a_header_without_an_option_is_pointed_out(line):
    assert warnings(HEAD + line + "\necho\n") == ["train.sh: line 2: #FG without an option is ignored"]


# --- the two families -------------------------------------------------------------------------------------


def test_sbatch_lines_are_read_where_there_is_no_fg_line():
    found = directives(HEAD + "#SBATCH --gpus=1\n#SBATCH-c 2\necho\n", "train.sh")
    assert found.family == "SBATCH"
    assert [line.words for line in found.lines] == [("--gpus=1",), ("-c", "2")]


def test_sbatch_lines_beside_fg_lines_are_ignored_with_a_note():
    text = HEAD + "#SBATCH --gpus=1\n#FG --gpus=0.5\necho\n"
    assert words(text) == [(3, "--gpus=0.5")]
    assert warnings(text) == ["train.sh: #SBATCH headers are ignored because #FG headers are present"]


def test_sbatch_lines_can_be_switched_off():
    text = HEAD + "#SBATCH --gpus=1\necho\n"
    assert directives(text, "train.sh", ignore_sbatch=True) == directives(HEAD + "echo\n", "train.sh")


def test_late_sbatch_lines_are_pointed_out_in_a_script_for_slurm():
    text = HEAD + "#SBATCH --gpus=1\necho\n#SBATCH -c 2\n"
    assert warnings(text) == ["train.sh: line 4: #SBATCH after the first command (line 3) is ignored"]


def test_a_script_written_for_a_queue_is_known():
    assert carries_headers(b"#!/bin/sh\n#SBATCH -n1\n")
    assert not carries_headers(b"#!/bin/sh\necho\n#FG -G1\n")


# --- words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" --gpus=1 # half", ["--gpus=1"]),
        ("--gpus=1#half", ["--gpus=1"]),
        ("--comment='a b' -c 2", ["--comment=a b", "-c", "2"]),
        ('--comment="it\'s"', ["--comment=it's"]),
        ("--comment=a\\ b", ["--comment=a b"]),
        ("--comment=\\#1", ["--comment=#1"]),
        ("'#' x", ["#", "x"]),
        ("--output=$HOME/*.out", ["--output=$HOME/*.out"]),
        ("''", [""]),
        ("'a\\'b'", ["a'b"]),
        ("end\\", ["end"]),
        ("", []),
    ],
)
def test_a_header_is_cut_as_slurm_cuts_it(text, expected):
    assert header_words(text) == expected


def test_an_unclosed_quote_names_file_and_line():
    text = HEAD + "#FG -G1\n#FG --comment='a b\necho\n"
    message = "train.sh:3: no closing quotation in '--comment='a b'"
    assert refused(directives, text, "train.sh") == message


def test_a_header_that_is_not_utf8_is_refused_with_the_offset_of_the_byte():
    text = b"#!/bin/sh\n#FG --comment=\xff\necho\n"
    assert (
        refused(directives, text, "train.sh") == "train.sh:2: byte 0xff at offset 24 of the file is not UTF-8"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 'b c' d", ["a", "b c", "d"]),
        ('a "b \\"c\\" \\n"', ["a", 'b "c" \\n']),
        ("a\\ b", ["a b"]),
        ("--comment='x y'z", ["--comment=x yz"]),
        ("a #b", ["a", "#b"]),
        ("'' x", ["", "x"]),
    ],
)
def test_a_batch_line_is_cut_as_a_shell_cuts_it(text, expected):
    assert shell_words(text) == expected


@pytest.mark.parametrize("text", ["'a", 'x "', "a\\", "a'b'c'"])
def test_a_batch_line_with_an_open_quote_is_known(text):
    with pytest.raises(Unclosed):
        shell_words(text)


@given(st.lists(st.text(st.characters(blacklist_characters="\0")), max_size=5))
def test_quoted_words_are_read_back(parts):
    assert shell_words(command_line(parts)) == parts


@given(
    st.one_of(
        st.binary(),
        st.lists(st.sampled_from([b"#FG ", b"\n", b"'", b"\\", b"-G", b"#", b"#SBATCH"])).map(b"".join),
    )
)
def test_any_bytes_are_read_or_refused(data):
    for text in (data, b"#!/bin/sh\n" + data):
        try:
            accept("x", text)
            found = directives(text, "x")
        except FgschedError as error:
            assert error.cause  # noqa: PT017
        else:
            assert all(line.words for line in found.lines)


def test_headers_that_are_all_below_the_first_command_are_told_to_ask_for_nothing():
    text = "#!/bin/sh\nmodule load cuda\n\n#SBATCH --gres=gpu:1\n#SBATCH --mem=8G\n"
    assert warnings(text) == [
        "train.sh: line 4: #SBATCH after the first command (line 2) is ignored;"
        " no header is above it, so the job asks for nothing by headers"
    ]
