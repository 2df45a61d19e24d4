"""The letters that wait to be sent, and the settings of sending. Times are in epoch seconds."""

import shlex
import socket
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from fgsched.domain.errors import Refused
from fgsched.domain.job import JobUsage, OomReport
from fgsched.domain.states import JobState
from fgsched.domain.text import quoted, storable
from fgsched.lifecycle.mail import is_address
from fgsched.protocol import Allocation, JobInfo


class MailSettings(Struct, frozen=True, kw_only=True):
    """How mails are sent: `[mail]` of the configuration."""

    way: str = "off"  # "sendmail", "smtp" or "off"
    sender: str = ""  # address in From; "": fgsched at the domain
    domain: str = ""  # appended to user names; "": the mail server appends its own
    sendmail: str = "/usr/sbin/sendmail"
    host: str = "localhost"
    port: int = 25
    tls: str = "none"  # "none", "starttls" or "tls"
    user: str = ""  # "": no authentication
    password_file: str = ""
    allowed: tuple[str, ...] = ()  # addresses, or @DOMAIN, beyond user names and the own domain
    tail: int = 20  # lines of output in a mail; 0: none
    deadline: float = 30.0  # seconds for one mail
    give_up: int = 432_000  # seconds after which a mail is no longer tried
    most_per_hour: int = 0  # mails about the jobs of one user; 0: no limit


NO_MAIL = MailSettings()


class Attachment(Struct, frozen=True, kw_only=True):
    """A file in a message."""

    name: str
    kind: str  # such as text/html
    data: bytes


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="message"):
    """A complete message."""

    at: float
    to: tuple[str, ...]
    subject: str
    text: str
    html: str = ""
    attachments: tuple[Attachment, ...] = ()


class MailedJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The attributes of a job in a mail that the job, its end or its request has under the same names."""

    uid: int
    gid: int
    user: str
    name: str
    array: int = 0
    task: int | None = None
    exit_code: int = 0
    signal: int = 0
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    suspended: float = 0.0  # seconds
    time_limit: int = 0  # seconds; 0: none
    slurm_env: bool = False  # its script is written for Slurm
    host_memory: int = 0  # bytes; 0: not counted
    gpu_peak: int = 0  # bytes
    max_rss: int = 0  # bytes
    cpu_seconds: float = 0.0
    detail: str = ""  # why the job could not be started
    warning: str = ""  # of the watchdog
    post_mortem: OomReport | None = None
    chdir: str = ""  # directory in which the job ran
    submit_line: str = ""  # command line of the submission; "": unknown
    restarts: int = 0


class JobMail(MailedJob, frozen=True, kw_only=True, omit_defaults=True, tag="job"):
    """An event of a job. The mailer composes the message when it sends it."""

    at: float
    to: tuple[str, ...]
    event: str  # a type of --mail-type
    types: str  # all types that the job asked for
    job: int
    state: str
    reason: str = "None"
    is_summary: bool = False  # of a whole array
    tasks: int = 0  # of the array
    completed: int = 0  # of these
    exits: tuple[int, int] = (0, 0)  # lowest and highest exit code of the tasks
    eligible_at: float = 0.0
    gpus: tuple[int, ...] = ()  # indices
    model: str = ""  # of the GPUs
    share: int = 0  # of each GPU, in ten-thousandths
    memory: int = 0  # bytes of each GPU
    cpus: int = 1
    ntasks: int = 1  # that share the CPUs
    output: str = ""  # path of the standard output
    errors: str = ""  # path of the standard error output; "": that of the standard output
    total: int = 0  # bytes of its smallest GPU
    usage: JobUsage | None = None  # sums of samples; None: there are none

    @property
    def run_seconds(self) -> float | None:
        """Return the run time in seconds, without suspended time; None: the job was not started."""
        if self.started_at is None:
            return None
        end = self.at if self.ended_at is None else self.ended_at
        return max(0.0, end - self.started_at - self.suspended)

    @property
    def resubmission(self) -> str:
        """The command that submits the job again; "" for one task of an array, or if it is unknown."""
        if not self.submit_line or (self.task is not None and not self.is_summary):
            return ""
        return f"cd {shlex.quote(self.chdir)} && {self.submit_line}"

    def info(self, usage: JobUsage | None = None) -> JobInfo:
        """Return the job as clients receive it, for the values of the view; `usage`: sums of its samples."""
        return JobInfo(
            **{name: getattr(self, name) for name in _SHARED} | {"array": self.array or None},
            id=self.job,
            state=JobState(self.state),
            eligible_at=self.eligible_at or self.submitted_at,
            elapsed=self.run_seconds or 0.0,
            gpus=len(self.gpus),
            cpus=self.cpus,
            ntasks=self.ntasks,
            allocated=[self._allocation(gpu) for gpu in self.gpus],
            usage=usage,
        )

    def _allocation(self, gpu: int) -> Allocation:
        return Allocation(
            gpu=gpu, uuid="", model=self.model, share=self.share, memory=self.memory, charged=self.share
        )


_SHARED = {*MailedJob.__struct_fields__} & {*JobInfo.__struct_fields__}
Letter = Message | JobMail
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Letter] = msgspec.json.Decoder(Letter)


def to_bytes(letter: Letter) -> bytes:
    """Return a letter as a line of JSON; bytes outside of UTF-8 become escapes such as \\xe9."""
    try:
        return _encoder.encode(letter) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(replace(letter, **_cleaned(letter))) + b"\n"


def _cleaned(letter: Letter) -> dict[str, Any]:
    """Return the texts of a letter as UTF-8."""
    texts = {name: value for name, value in asdict(letter).items() if isinstance(value, str)}
    return {name: storable(text) for name, text in texts.items()}


def is_cut_short(data: bytes) -> bool:
    """Tell whether a loss of power took the end of a letter, which is then missing or zeros."""
    return b"\0" in data or not data.endswith(b"\n")


def from_bytes(data: bytes) -> Letter:
    """Return the letter of a line. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


def resolved(to: Iterable[str], settings: MailSettings, host: str) -> list[str]:
    """Append the site's domain to user names; for SMTP, the host's name if the site has no domain.

    Raises:
        Refused: an address is not allowed.
    """
    domain = settings.domain or (host if settings.way == "smtp" else "")
    for address in to:
        check_address(address, settings)
    return [f"{address}@{domain}" if "@" not in address and domain else address for address in to]


def check_address(address: str, settings: MailSettings) -> None:
    """Refuse an address to which the site sends no mail. Raises Refused."""
    if not is_address(address):
        raise Refused(f"{quoted(address)} is not an address", "Give a user name, or NAME@DOMAIN.")
    if "@" not in address or address.lower() in {entry.lower() for entry in settings.allowed}:
        return
    domain = address.rpartition("@")[2].lower()
    domains = {entry[1:].lower() for entry in settings.allowed if entry.startswith("@")}
    if domain not in domains | ({settings.domain.lower()} - {""}):
        raise Refused(
            f"mail to {address} is not allowed on this host",
            "Give a user name, or ask the administrator to add the address to `allowed` in [mail].",
        )


def sender_of(settings: MailSettings, host: str) -> str:
    """Return the address that the mails come from."""
    return settings.sender or f"fgsched@{settings.domain or host}"


def host_name() -> str:
    """Return the fully qualified name of this host; its own name if the resolver returns localhost."""
    name = socket.getfqdn()
    return socket.gethostname() if name.partition(".")[0] == "localhost" else name
