"""cuda-bindings: what the driver answers to many calls on a host without a GPU, before and after cuInit."""

from cuda.bindings import driver

PROPERTIES = driver.CUmemAllocationProp()
CALLS = {
    "cuDriverGetVersion": (),
    "cuDeviceGetCount": (),
    "cuDeviceGet": (0,),
    "cuDeviceTotalMem": (0,),
    "cuCtxGetCurrent": (),
    "cuCtxGetDevice": (),
    "cuCtxSynchronize": (),
    "cuDevicePrimaryCtxRetain": (0,),
    "cuDevicePrimaryCtxRelease": (0,),
    "cuDevicePrimaryCtxReset": (0,),
    "cuMemAlloc": (1 << 20,),
    "cuMemAllocPitch": (100, 100, 4),
    "cuMemAllocManaged": (1 << 20, 1),
    "cuMemFree": (4096,),
    "cuMemGetInfo": (),
    "cuMemAllocAsync": (1 << 20, 0),
    "cuMemFreeAsync": (4096, 0),
    "cuMemCreate": (2 << 20, PROPERTIES, 0),
    "cuMemRelease": (1,),
    "cuMemUnmap": (1 << 30, 2 << 20),
    "cuDeviceGetDefaultMemPool": (0,),
    "cuStreamSynchronize": (0,),
    "cuEventSynchronize": (0,),
    "cuGraphCreate": (0,),
    "cuGraphLaunch": (0, 0),
    "cuDeviceGraphMemTrim": (0,),
    "cuIpcCloseMemHandle": (4096,),
    "cuLaunchKernel": (0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0),
}


def main():
    for when in ("before", "after"):
        for name, arguments in CALLS.items():
            try:
                print(when, name, getattr(driver, name)(*arguments)[0].name)
            except RuntimeError as error:
                print(when, name, error)
        print("cuInit", driver.cuInit(0)[0].name)


main()
