"""Ask the process that sends a command line about what only it knows: its files, user database and time zone.

The controller reads a line with `Asking` in the place of that process. An open question does not end the
reading if the answer is mostly "right"; the line is then sent again with the answers, and read again.
"""

import os
from collections.abc import Mapping, Sequence, Set

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import lazy_regex, shown
from fgsched.lifecycle.filenames import PatternValues, expand, needs_the_job
from fgsched.lifecycle.jobscript import accept
from fgsched.protocol import LineQuestion, QuestionKind, SubmitLine
from fgsched.submission.checks import NoScript, Process, Source, interpreter, is_program
from fgsched.submission.options import AnySetting, Setting
from fgsched.submission.table import BY_NAME

_SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin")
_EPOCH = lazy_regex(r"-?[0-9]{1,12}(\.[0-9]{1,20})?")  # seconds
_HEAD = 512  # bytes of a script in which its interpreter is named


class Unknown(Exception):
    """Raised if a line cannot be read further without an answer."""


# -- the controller: it asks -----------------------------------------------------------------------


class Asking:
    """The process that sends a line, as far as it has described itself."""

    def __init__(self, call: SubmitLine) -> None:
        self._call = call
        self.cwd, self.umask, self.rlimits = call.cwd, call.umask, tuple(call.rlimits)
        self.environ = _variables(call)
        self._facts = {fact.question: fact.words for fact in call.facts}
        self.open: list[LineQuestion] = []
        self.checks: list[str] = []  # of the open questions, for a program that only checks paths
        self.are_checks_enough = True

    def account(self) -> tuple[str, str]:
        """Return name and home directory of the caller, as its user database has them. Raises Unknown."""
        name, home = self._must_know(LineQuestion(kind="account"), {2})
        return name, home

    def moment(self, text: str) -> tuple[float, str]:
        """Return a time in seconds since the epoch, in the time zone of the process. Raises Unknown."""
        epoch, remark = self._must_know(LineQuestion(kind="moment", text=text), {2})
        if not _EPOCH.fullmatch(epoch):
            raise _unusable("moment")
        return float(epoch), remark

    def script(self, word: str | None, directory: str) -> Source:
        """Return the text of a script that was sent. Raises Unknown, BadUsage or NoScript."""
        if word is not None and word in self._call.files:
            data = self._call.files[word].encode(errors="surrogateescape")
            accept(shown(word), data)
            return Source(shown(word), data)
        words = (directory,) if word is None else (directory, word)
        answer_words = self._must_know(LineQuestion(kind="script", words=words), {2, 3})
        if len(answer_words) == 2:
            raise NoScript(*answer_words)
        name, text, program = answer_words
        data = text.encode(errors="surrogateescape")
        if not program:
            accept(name, data)
        return Source(name, data, program)

    def job_directory(self, setting: AnySetting | None) -> str:
        """Return the directory of the job, which the process has to check."""
        if setting is None:
            return self.cwd
        path = os.path.normpath(os.path.join(self.cwd, setting.text))
        self._know(_about(setting, "enter"), [f"d{path}", f"x{path}"])
        return path

    def check_interpreter(self, name: str, data: bytes, directory: str, path: str) -> None:
        """Ask about an interpreter that is not one of the system."""
        program, is_in_path = interpreter(data)
        folders = path.split(os.pathsep) if is_in_path else [os.path.dirname(program)]
        if not program or _is_of_system(os.path.basename(program), folders):
            return
        head = data[:_HEAD].decode(errors="surrogateescape")
        checks = None if is_in_path else [f"x{os.path.join(directory, program)}"]
        self._know(LineQuestion(kind="interpreter", words=(name, head, directory, path)), checks)

    def check_container(self, setting: AnySetting, image: str, environ: Mapping[str, str]) -> None:
        """Ask about an image, and the container runtimes that the job would find."""
        named = environ.get("FG_CONTAINER_RUNTIME", "")
        self._know(_about(setting, "container", image, environ.get("PATH", os.defpath), named))

    def is_file(self, path: str) -> bool:
        """Tell whether a path of the process is a file. Raises Unknown."""
        return bool(self._must_know(LineQuestion(kind="file", words=(path,)), {0, 1}))

    def is_writable(self, directory: str) -> bool:
        """Ask whether the process can create files in a directory. A native one has checked its own."""
        if directory == self.cwd and not self._call.asks:
            return True
        return not self._know(LineQuestion(kind="writable", words=(directory,)), [f"w{directory}"])

    def check_output(self, setting: AnySetting, values: PatternValues, chdir: str, *, make: bool) -> str:
        """Ask about an output file; return a warning if the process has one."""
        parent = os.path.dirname(setting.text)
        if setting.text == os.devnull or needs_the_job(parent):
            return ""
        path = os.path.join(chdir, expand(setting.text, values))
        checks = [f"d{os.path.dirname(path)}", f"w{path}"]
        checks += [] if needs_the_job(setting.text) else [f"f{path}"]
        words = (values.name, values.user, values.home, chdir)
        is_plain = not make and not path.endswith("/")
        question = _about(setting, "make" if make else "output", *words)
        return "".join(self._know(question, checks if is_plain else None))

    def check_input(self, setting: AnySetting, values: PatternValues, chdir: str) -> str:
        """Ask about an input file; return a warning if the process has one."""
        if setting.text == os.devnull:
            return ""
        return "".join(self._know(_about(setting, "input", values.name, values.user, values.home, chdir)))

    def _must_know(self, question: LineQuestion, sizes: Set[int]) -> Sequence[str]:
        """Return an answer without which the line cannot be read, of so many words.

        Raises: Unknown; BadUsage for an answer of another size.
        """
        if question not in self._facts:
            self._know(question)
            raise Unknown
        answer = self._facts[question]
        if len(answer) not in sizes:
            raise _unusable(question.kind)
        return answer

    def _know(self, question: LineQuestion, checks: Sequence[str] | None = None) -> Sequence[str]:
        """Return an answer; empty if all is right, or not known yet.

        Args:
            checks: of paths; if all hold, the answer is that all is right. None: they do not suffice.
        """
        answer = self._facts.get(question)
        if answer is None and not (self._call.checked and checks is not None):
            self.open.append(question)
            self.checks += checks or ()
            self.are_checks_enough &= checks is not None
        return answer or ()


def _unusable(kind: QuestionKind) -> BadUsage:
    """Return the error about an answer that no command of fgsched gives."""
    return BadUsage(f"malformed request: the answer to the question {kind!r} cannot be used")


def _about(setting: AnySetting, kind: QuestionKind, *words: str) -> LineQuestion:
    """Return a question about the value of an option."""
    return LineQuestion(
        kind=kind,
        words=words,
        option=setting.option.name,
        text=setting.text,
        source=setting.source,
        line=setting.line,
    )


def _is_of_system(program: str, folders: Sequence[str]) -> bool:
    """Tell whether one of these folders is of the system, not on a remote file system, and has a program."""
    return any(folder in _SYSTEM and is_program(f"{folder}/{program}") for folder in folders)


def _variables(call: SubmitLine) -> Mapping[str, str]:
    """Return the variables as Python has them: of two with one name the first."""
    variables: dict[str, str] = {}
    for variable in call.environ:
        name, equals, value = variable.partition("=")
        if equals:
            variables.setdefault(name, value)
    return variables


# -- the process: it answers -----------------------------------------------------------------------


def answer(question: LineQuestion, process: Process) -> tuple[str, ...]:
    """Return the answer of this process. Raises the error of a check that fails."""
    words = question.words
    match question.kind:
        case "account":
            return process.account()
        case "moment":
            epoch, remark = process.moment(question.text)
            return f"{epoch:.6f}", remark
        case "script":
            return _script(process, *words)
        case "file":
            return ("yes",) if process.is_file(words[0]) else ()
        case "writable":
            return () if process.is_writable(words[0]) else ("no",)
        case "interpreter":
            name, head, directory, path = words
            process.check_interpreter(name, head.encode(errors="surrogateescape"), directory, path)
            return ()
        case _:
            warning = _of_option(question, process)
            return (warning,) if warning else ()


def _script(process: Process, directory: str, word: str | None = None) -> tuple[str, ...]:
    try:
        source = process.script(word, directory)
    except NoScript as error:
        return error.cause, error.remedy
    return source.name, source.data.decode(errors="surrogateescape"), source.program


def _of_option(question: LineQuestion, process: Process) -> str:
    """Check the value of an option; return a warning, or "". Raises BadUsage or Refused."""
    words = question.words
    setting = Setting(BY_NAME[question.option], question.text, None, question.source, question.line)
    if question.kind == "enter":
        process.job_directory(setting)
        return ""
    if question.kind == "container":
        image, path, runtime = words
        process.check_container(setting, image, {"PATH": path, "FG_CONTAINER_RUNTIME": runtime})
        return ""
    name, user, home, chdir = words
    values = PatternValues(job_id=0, name=name, user=user, home=home, host=os.uname().nodename.split(".")[0])
    if question.kind == "input":
        return process.check_input(setting, values, chdir)
    return process.check_output(setting, values, chdir, make=question.kind == "make")
