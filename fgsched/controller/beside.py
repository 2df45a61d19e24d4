"""The GPUs and the helper processes of a controller."""

from typing import NamedTuple

from fgsched import gpus
from fgsched.accounting.process import AccountantProcess
from fgsched.launch.spawner import Spawner
from fgsched.mail.process import MailerProcess
from fgsched.system.hostusers import HostUsers
from fgsched.system.process import NO_CHILDREN, Children


class Beside(NamedTuple):
    """The GPUs and the helper processes. Accountant and mailer are started when requests are accepted."""

    spawner: Spawner
    sampler: gpus.AnySampler
    host_users: HostUsers
    inventory: gpus.Inventory
    accountant: AccountantProcess | None = None  # None: there are no accounts
    mailer: MailerProcess | None = None  # None: there are no mails
    sessions: tuple[HostUsers, ...] = ()  # with PAM sessions, for the start of jobs; none: PAM is not used
    inherited: Children = NO_CHILDREN  # of this process before it executed itself again
