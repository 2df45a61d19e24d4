"""Complete the addresses of mails, and check who may receive them."""

import socket
from collections.abc import Iterable

from fgsched.domain.errors import Refused
from fgsched.domain.text import quoted
from fgsched.lifecycle.mail import is_address
from fgsched.mail.letters import MailSettings


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
    if "@" not in address or address.lower() in {one.lower() for one in settings.allowed}:
        return
    domain = address.rpartition("@")[2].lower()
    domains = {one[1:].lower() for one in settings.allowed if one.startswith("@")}
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
    found = socket.getfqdn()
    return socket.gethostname() if found.partition(".")[0] == "localhost" else found
