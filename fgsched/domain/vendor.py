"""What fgsched has to know of a GPU vendor outside of `gpus/`, as values: names, variables, abilities."""

from msgspec import Struct, field

Pairs = tuple[tuple[str, str], ...]  # (variable, value); hashable, since launches are cached by vendor


class ShareService(Struct, frozen=True, kw_only=True):
    """A vendor's service that divides the compute units of a GPU among the processes of one user.

    In the templates of variables, {directory} is that of the daemon, {uuid} that of its GPU, {percent} the
    part of the compute units of a client, and {mebibytes} its limit of device memory.
    """

    program: str = ""  # name of the control program, which is the daemon and sends it commands
    server: str = ""  # name of the process that the daemon starts
    directory: str = ""  # variable with the directory of the daemon
    prefix: str = ""  # of the variables of a client
    client: Pairs = ()  # the variables of a client, with the templates of their values
    daemon: Pairs = ()  # the variables of the daemon and of commands to it, with templates of their values


class VendorFacts(Struct, frozen=True, kw_only=True):
    """The values of one vendor, or of simulated GPUs."""

    name: str  # of the vendor, for messages
    source: str  # name of the vendor's interface, as the status of the controller shows it
    is_real: bool = True  # devices of the host: one controller allocates them, and their use is measured
    may_hang: bool = True  # a query of the driver may block forever, so a process of its own asks
    is_hooked: bool = True  # the hook limits the device memory of jobs on these GPUs
    selection: str  # variable with the words that select the GPUs of a process; empty, it hides all GPUs
    aliases: tuple[str, ...] = ()  # variables with the same words, which Slurm sets beside it
    constant: Pairs = ()  # variables, with their values, of every job with GPUs
    uuids: str = ""  # variable with UUIDs: of containers, and of jobs with partitions of GPUs; "": none
    no_uuids: str = ""  # its value in a container without GPUs
    prefix: str = ""  # of the vendor's variables, which each step of a job gets
    service: ShareService = field(default_factory=ShareService)  # without program: the vendor has none
    brands: tuple[str, ...] = ()  # words that a short name of a model leaves out
    series: tuple[str, ...] = ()  # further words that only narrow columns leave out
    runtime: str  # the vendor's library for programs on GPUs, for messages
    context: str = "context"  # what a process allocates on a GPU before anything else, for messages
    listing: str = ""  # command that lists the GPUs of the driver
    query: str = ""  # program that lists the processes on the GPUs
    apptainer: str = ""  # option of apptainer and singularity that shows the driver in a container
    cdi: str = ""  # kind of the vendor's devices in the descriptions of hosts for containers; "": none

    @property
    def selecting(self) -> tuple[str, ...]:
        """The variables by which programs find the GPUs of a job."""
        return (self.selection, *(name for name, _ in self.constant))

    @property
    def of_jobs(self) -> frozenset[str]:
        """The variables that a job gets, and a job that is submitted inside must not inherit."""
        of_jobs = (*self.selecting, *self.aliases, self.uuids, *(name for name, _ in self.service.client))
        return frozenset(name for name in of_jobs if name)
