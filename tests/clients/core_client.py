"""cuda-core and cuda-bindings: allocate, copy, launch, meet the limit."""

import ctypes
import json

from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, launch

MIB = 1 << 20
CODE = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\0"


def call(answer):
    """Return the results of a call of cuda.bindings; its first is the status."""
    status, *results = answer
    if status:
        raise MemoryError(status.name)
    return results[0] if len(results) == 1 else results


def given_until_refused(allocate):
    kept = []
    try:
        while len(kept) < 4000:
            kept.append(allocate())
    except Exception as error:
        return kept, f"{type(error).__name__}: {str(error)[:25]}"
    return kept, ""


def trim(stream):
    """Give back what the device's pool keeps."""
    stream.sync()
    call(driver.cuMemPoolTrimTo(call(driver.cuDeviceGetMemPool(0)), 0))


def main():
    device, said = Device(0), {}
    device.set_current()
    stream = device.create_stream()
    said["device"] = [device.name, *device.compute_capability]
    said["view"] = [amount // MIB for amount in call(driver.cuMemGetInfo())]
    buffers, said["refused by a pool"] = given_until_refused(lambda: device.allocate(16 * MIB, stream=stream))
    said["given by a pool"] = 16 * len(buffers)
    for buffer in buffers:
        buffer.close(stream)
    trim(stream)
    pieces, said["refused"] = given_until_refused(lambda: call(driver.cuMemAlloc(16 * MIB)))
    said["given"] = 16 * len(pieces)
    source, target = ctypes.create_string_buffer(b"contents"), ctypes.create_string_buffer(8)
    call(driver.cuMemcpyHtoD(pieces[0], ctypes.addressof(source), 8))
    call(driver.cuMemcpyDtoH(ctypes.addressof(target), pieces[0], 8))
    said["copied"] = target.raw.decode()
    for piece in pieces:
        call(driver.cuMemFree(piece))
    launch(stream, LaunchConfig(grid=1, block=32), ObjectCode.from_ptx(CODE).get_kernel("nothing"))
    asynchronous = call(driver.cuMemAllocAsync(MIB, 0))
    call(driver.cuMemFreeAsync(asynchronous, 0))
    trim(stream)
    said["after"] = [amount // MIB for amount in call(driver.cuMemGetInfo())]
    print(json.dumps(said))


main()
