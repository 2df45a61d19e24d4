"""Read a command line of another process, from what that process reported of itself."""

import os
from collections.abc import Mapping

from fgsched.domain.text import shown
from fgsched.domain.units import SubmitContext
from fgsched.lifecycle.filenames import Values, expand, needs_the_job
from fgsched.lifecycle.jobscript import accept
from fgsched.protocol import SubmitLine
from fgsched.submission.checks import Source, interpreter, is_program
from fgsched.submission.options import HelpAsked, Setting, given, read
from fgsched.submission.prepare import Prepared, Submitter

_OWN_ZONE = ("begin", "deadline")  # times that count in the time zone of the submitter

_PREFIXES = ("FGSUB_", "SBATCH_")  # of variables that are options
_SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin")
_LONGEST = 4096  # characters of it, as of a word


class Elsewhere(Exception):
    """Raised if only the submitting process can read a command line."""


class Reported:
    """The submitting process, as it described itself."""

    def __init__(self, call: SubmitLine) -> None:
        self._call, self.cwd = call, call.cwd
        self.umask = call.umask
        self.rlimits = tuple(call.rlimits)
        self.environ = _variables(call)
        self.checks: list[str] = []  # paths that the submitter has to check

    def account(self) -> tuple[str, str]:
        """Refuse: the user database may say something else there. Raises Elsewhere."""
        raise Elsewhere

    def script(self, word: str | None, directory: str) -> Source:
        """Return the text of a script that was sent.

        Raises: Elsewhere for another file; BadUsage, if the text is no script.
        """
        if word is None or word not in self._call.files:
            raise Elsewhere
        data = self._call.files[word].encode(errors="surrogateescape")
        accept(shown(word), data)
        return Source(shown(word), data)

    def working_directory(self, setting: Setting | None) -> str:
        """Return the directory of the job, which the submitter has to check."""
        if setting is None:
            return self.cwd
        path = os.path.normpath(os.path.join(self.cwd, setting.text))
        self.checks += [f"d{path}", f"x{path}"]
        return path

    def check_interpreter(self, name: str, data: bytes, directory: str, path: str) -> None:
        """Look for an interpreter of the system; the submitter checks another one. Raises Elsewhere."""
        program, is_in_path = interpreter(data)
        if is_in_path and program and not any(is_program(f"{place}/{program}") for place in _SYSTEM):
            raise Elsewhere
        if program and not is_in_path and not _is_of_system(program):
            self.checks.append(f"x{os.path.join(directory, program)}")

    def check_container(self, setting: Setting, image: str, environ: Mapping[str, str]) -> None:
        """Leave the image and the runtime of a container to the submitter. Raises Elsewhere."""
        raise Elsewhere

    def is_file(self, path: str) -> bool:
        """Leave the files of the current directory to the submitter. Raises Elsewhere."""
        raise Elsewhere

    def is_writable(self, directory: str) -> bool:
        """Leave the check of a directory to the submitter; it has checked its own before it sent the line."""
        if directory != self.cwd:
            self.checks.append(f"w{directory}")
        return True

    def check_output(self, setting: Setting, values: Values, chdir: str, *, make: bool) -> str:
        """Leave the checks of an output file to the submitter. Raises Elsewhere with `make`."""
        if needs_the_job(os.path.dirname(setting.text)):
            return ""
        path = os.path.join(chdir, expand(setting.text, values))
        if make or path.endswith("/"):
            raise Elsewhere
        self.checks += [f"d{os.path.dirname(path)}", f"w{path}"]
        if not needs_the_job(setting.text):
            self.checks.append(f"f{path}")
        return ""

    def check_input(self, setting: Setting, values: Values, chdir: str) -> str:
        """Leave the check of an input file to the submitter. Raises Elsewhere."""
        if setting.text != os.devnull:
            raise Elsewhere
        return ""


def _is_of_system(program: str) -> bool:
    """Tell whether a program exists in a directory of the system, which is not on a remote file system."""
    return os.path.dirname(program) in _SYSTEM and is_program(program)


def _variables(call: SubmitLine) -> Mapping[str, str]:
    """Return the variables as Python has them: of two with one name the first."""
    found: dict[str, str] = {}
    for one in call.environ:
        name, equals, value = one.partition("=")
        if equals:
            found.setdefault(name, value)
    return found


def prepared(call: SubmitLine, here: Reported, site: SubmitContext) -> Prepared:
    """Return the submission of a command line.

    Raises: Elsewhere, if only the submitter can read it; BadUsage, if it is wrong.
    """
    if any(len(one) > _LONGEST for one in call.environ if one.startswith(_PREFIXES)):
        raise Elsewhere
    try:
        settings, words = read(call.words)
    except HelpAsked:
        raise Elsewhere from None
    if given(settings, "batch") is not None:
        raise Elsewhere
    job = Submitter(here, site=site, name=call.name).prepare(settings, words)
    flags = job.flags
    if (
        flags.json
        or flags.wait
        or flags.explain
        or flags.test
        or any(slot in job.settings for slot in _OWN_ZONE)
    ):
        raise Elsewhere
    return job
