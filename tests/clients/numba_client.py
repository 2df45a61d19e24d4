"""numba-cuda: allocate, copy, launch, meet the limit."""

import json

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

MIB = 1 << 20


@cuda.jit
def increment(values):
    values[cuda.grid(1)] += 1


def main():
    context, said = cuda.current_context(), {}
    info = context.get_memory_info()
    said["view"] = [info.free // MIB, info.total // MIB]
    numbers = np.arange(1000, dtype=np.float32)
    copy = cuda.to_device(numbers)
    said["copied"] = bool((copy.copy_to_host() == numbers).all())
    kept = []
    try:
        while len(kept) < 4000:
            kept.append(cuda.device_array(16 * MIB, np.uint8))
    except CudaAPIError as error:
        said["refused"] = error.msg
    said["given"] = 16 * len(kept)
    kept.clear()
    context.deallocations.clear()
    increment[128, 32](copy)
    stream, event = cuda.stream(), cuda.event()
    increment[128, 32, stream](copy)
    event.record(stream)
    event.synchronize()
    cuda.synchronize()
    said["after"] = context.get_memory_info().total // MIB
    print(json.dumps(said))


main()
