"""Print the events of jobs and GPUs as they happen: fgctl subscribe."""

from typing import TextIO

from fgsched.client import Client, find_places
from fgsched.hooks.subscription import BEGUN, follow, lines_of


def subscribe(output: TextIO, *, as_json: bool) -> None:
    """Print events until the reader goes away. The first JSON object says that the subscription has begun."""
    with Client(find_places(), may_start=False) as client:
        batches = follow(client, "")
        next(batches)
        output.write(f"{BEGUN}\n" if as_json else "")
        output.flush()
        for batch in batches:
            output.writelines(f"{line}\n" for line in lines_of(batch, as_json=as_json))
            output.flush()
