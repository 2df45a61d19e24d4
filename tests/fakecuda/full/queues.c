/* Streams and events beyond those of the plain fake driver. Callbacks are called at once. */
#include "driver.h"

extern int in_cuStreamCreate(stream **, unsigned), in_cuStreamIsCapturing(stream *, int *), in_cuEventCreate(void **, unsigned);
extern int in_cuEventRecord(void *, stream *), in_cuEventRecord_ptsz(void *, stream *), in_cuEventElapsedTime(float *, void *, void *);
extern int in_cuStreamIsCapturing_ptsz(stream *, int *);

DRIVER(cuStreamCreateWithPriority, (CUstream *out, unsigned flags, int priority UNUSED), (out, flags, priority)) {
    return (CUresult)in_cuStreamCreate((stream **)out, flags);
}
ASYNC_PAIR(cuStreamQuery, (CUstream on), (on)) {
    return fake_is_busy((stream *)on) ? CUDA_ERROR_NOT_READY : needs_context();
}
ASYNC_PAIR(cuStreamGetPriority, (CUstream on UNUSED, int *priority), (on, priority)) {
    *priority = 0;
    return CUDA_SUCCESS;
}
ASYNC_PAIR(cuStreamGetFlags, (CUstream on UNUSED, unsigned *flags), (on, flags)) {
    *flags = 0;
    return CUDA_SUCCESS;
}
ASYNC_PAIR(cuStreamGetId, (CUstream on, unsigned long long *id), (on, id)) {
    *id = (unsigned long long)on;
    return CUDA_SUCCESS;
}
ASYNC_PAIR(cuStreamGetDevice, (CUstream on UNUSED, CUdevice *device), (on, device)) {
    if (!fake_current()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake_device_of(fake_current()->card);
    return CUDA_SUCCESS;
}
ASYNC_PAIR(cuStreamGetCtx_v2, (CUstream on UNUSED, CUcontext *at, CUgreenCtx *green), (on, at, green)) {
    *at = (CUcontext)fake_current();
    if (green) *green = NULL;
    return needs_context();
}
ASYNC_PAIR(cuStreamAddCallback, (CUstream on, CUstreamCallback call, void *data, unsigned flags UNUSED), (on, call, data, flags)) {
    call(on, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}
ASYNC_PAIR(cuLaunchHostFunc, (CUstream on UNUSED, CUhostFn call, void *data), (on, call, data)) {
    call(data);
    return CUDA_SUCCESS;
}
static CUresult capture_of(CUstream on, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
    if (id) *id = 1;
    if (graph) *graph = NULL;
    if (nodes) *nodes = NULL;
    if (count) *count = 0;
    return (CUresult)in_cuStreamIsCapturing((stream *)on, (int *)status);
}
ASYNC_PAIR(cuStreamGetCaptureInfo_v2, (CUstream on, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count), (on, status, id, graph, nodes, count)) {
    return capture_of(on, status, id, graph, nodes, count);
}
ASYNC_PAIR(cuStreamGetCaptureInfo_v3, (CUstream on, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count), (on, status, id, graph, nodes, edges, count)) {
    if (edges) *edges = NULL;
    return capture_of(on, status, id, graph, nodes, count);
}
DRIVER(cuEventRecordWithFlags, (CUevent event, CUstream on, unsigned flags UNUSED), (event, on, flags)) {
    return (CUresult)in_cuEventRecord(event, (stream *)on);
}
DRIVER(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream on, unsigned flags UNUSED), (event, on, flags)) {
    return (CUresult)in_cuEventRecord_ptsz(event, (stream *)on);
}
DRIVER(cuEventElapsedTime_v2, (float *milliseconds, CUevent from, CUevent to), (milliseconds, from, to)) {
    return (CUresult)in_cuEventElapsedTime(milliseconds, from, to);
}
/* An event of another process is one that was reached. */
DRIVER(cuIpcGetEventHandle, (CUipcEventHandle *out, CUevent event UNUSED), (out, event)) {
    memset(out, 1, sizeof *out);
    return CUDA_SUCCESS;
}
DRIVER(cuIpcOpenEventHandle, (CUevent *out, CUipcEventHandle from UNUSED), (out, from)) {
    return (CUresult)in_cuEventCreate((void **)out, 0);
}
