"""What fgsched has to know of a GPU vendor outside of `gpus/`, as values: names, variables, abilities."""

from collections.abc import Mapping

from msgspec import Struct, field


class ShareService(Struct, frozen=True, kw_only=True):
    """A vendor's service that divides the compute units of a GPU among the processes of one user.

    In the templates of variables, {directory} is that of the daemon, {uuid} that of its GPU, {percent} the
    part of the compute units of a client, and {mebibytes} its limit of device memory.
    """

    program: str = ""  # name of the control program, which is the daemon and sends it commands
    server: str = ""  # name of the process that the daemon starts
    directory: str = ""  # variable with the directory of the daemon
    prefix: str = ""  # of the variables of a client
    client: Mapping[str, str] = field(default_factory=dict)  # variable -> template of its value
    daemon: Mapping[str, str] = field(default_factory=dict)  # the same, for the daemon and the commands to it


class VendorFacts(Struct, frozen=True, kw_only=True):
    """The values of one vendor, or of simulated GPUs."""

    source: str  # name of the vendor's interface, as the status of the controller shows it
    is_real: bool = True  # devices of the host: one controller allocates them, and their use is measured
    may_hang: bool = True  # a query of the driver may block forever, so a process of its own asks
    is_hooked: bool = True  # the hook limits the device memory of jobs on these GPUs
    selection: str  # variable with the words that select the GPUs of a process; empty, it hides all GPUs
    aliases: tuple[str, ...] = ()  # variables with the same words, which Slurm sets beside it
    constant: Mapping[str, str] = field(default_factory=dict)  # variables of every job with GPUs
    uuids: str = ""  # variable with UUIDs: of containers, and of jobs with partitions of GPUs; "": none
    no_uuids: str = ""  # its value in a container without GPUs
    prefix: str = ""  # of the vendor's variables, which each step of a job gets
    service: ShareService = field(default_factory=ShareService)  # without program: the vendor has none
    brands: tuple[str, ...] = ()  # words that a short name of a model leaves out
    context: str = "context"  # what a process allocates on a GPU before anything else, for messages
    listing: str = ""  # command that lists the GPUs of the driver
    query: str = ""  # program that lists the processes on the GPUs
    apptainer: str = ""  # option of apptainer and singularity that shows the driver in a container
    cdi: str = ""  # kind of the vendor's devices in the descriptions of hosts for containers; "": none

    @property
    def of_jobs(self) -> frozenset[str]:
        """The variables that a job gets, and a job that is submitted inside must not inherit."""
        own = (self.selection, *self.aliases, *self.constant, self.uuids, *self.service.client)
        return frozenset(name for name in own if name)


UNKNOWN = VendorFacts(source="none", is_real=False, is_hooked=False, selection="")


def short_model(model: str, brands: tuple[str, ...]) -> str:
    """Return the name of a GPU model without the names of its vendor and line at its beginning."""
    for brand in brands:
        model = model.removeprefix(f"{brand} ")
    return model
