"""JAX: allocate, copy, compile and launch, meet the limit. Amounts are MiB."""

import json
import os

os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # it compares versions of libraries that are not there
import jax
import jax.numpy as jnp
import numpy as np
from jax._src import hardware_utils

MIB = 1 << 20


def main():
    hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for a file in /dev
    device, said, kept = jax.devices("cuda")[0], {}, []
    said["limit"] = device.memory_stats()["bytes_limit"] // MIB
    numbers = np.arange(1000, dtype=np.float32)
    said["copied"] = bool((np.asarray(jax.device_put(numbers, device)) == numbers).all())
    added = jax.jit(lambda values: values + 1)(jnp.asarray(numbers))
    said["launched"] = list(added.block_until_ready().shape)
    room = np.zeros(16 * MIB, dtype=np.uint8)
    try:
        while len(kept) < 4000:
            kept.append(jax.device_put(room, device).block_until_ready())
    except jax.errors.JaxRuntimeError as error:
        said["refused"] = str(error).partition(":")[0]
    said["given"] = 16 * len(kept)
    print(json.dumps(said))


main()
