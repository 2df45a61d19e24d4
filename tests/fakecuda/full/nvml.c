/* libnvidia-ml.so.1: functions that PyTorch looks up at its first refusal and cannot do without. */
enum { NOT_SUPPORTED = 3 };
#define UNSUPPORTED(name) __attribute__((visibility("default"))) int name(void) { return NOT_SUPPORTED; }
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV)
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetP2PStatus)
