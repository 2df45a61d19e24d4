"""Ask which partitions, accounts and qualities of service there are, where no job has the chosen ones."""

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import BadUsage
from fgsched.views import choices


def unknown(client: Client, where: protocol.Where) -> BadUsage | None:
    """Return the error about a name in `where` that no job can have; None: there is none."""
    if not (where.partition or where.account or where.qos):
        return None
    partitions = client.call(protocol.ListPartitions()).partitions
    declared = client.call(protocol.ListAssociations())
    return choices.unknown(
        where,
        [partition.partition.name for partition in partitions],
        [account.name for account in declared.accounts],
        [qos.name for qos in declared.qos],
    )
