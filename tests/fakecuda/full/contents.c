/* Device memory is host memory, in a window of addresses of which none is used twice. Copies and fills are done at once. */
#include <sys/mman.h>
#include "driver.h"

#define WINDOW ((uint64_t)0x700000000000)
#define WINDOW_SIZE ((uint64_t)1 << 43)
static uint64_t next = WINDOW;

static void open_window(void) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap(HOST(WINDOW), WINDOW_SIZE, PROT_READ | PROT_WRITE, how, -1, 0) != HOST(WINDOW)) abort();
}
uint64_t fake_open_memory(uint64_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_window);
    return __atomic_fetch_add(&next, GRAINS(bytes) + GRAIN, __ATOMIC_RELAXED);
}
static int is_inside(uint64_t address, uint64_t bytes) { return address >= WINDOW && address - WINDOW <= WINDOW_SIZE - bytes; }
void fake_close_memory(uint64_t address, uint64_t bytes) {
    if (address % GRAIN == 0 && is_inside(address, GRAINS(bytes))) madvise(HOST(address), GRAINS(bytes), MADV_DONTNEED);
}
/* A block is a file in memory, made at its first mapping: all its mappings have the same contents. */
int fake_map_block(uint64_t address, uint64_t bytes, int *file, uint64_t block_bytes) {
    if (!*file) {
        *file = memfd_create("block", MFD_CLOEXEC);
        if (*file < 0 || ftruncate(*file, (off_t)block_bytes)) return 0;
    }
    int how = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    return is_inside(address, bytes) && mmap(HOST(address), bytes, PROT_READ | PROT_WRITE, how, *file, 0) != MAP_FAILED;
}
void fake_unmap_block(uint64_t address, uint64_t bytes) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (is_inside(address, bytes)) mmap(HOST(address), bytes, PROT_READ | PROT_WRITE, how, -1, 0);
}

static CUresult copy(void *to, const void *from, size_t bytes) {
    CUresult status = needs_context();
    if (status == CUDA_SUCCESS) memmove(to, from, bytes);
    return status;
}
/* Each kind of copy, by the thread or on a stream. */
#define COPIES(kind, to_type, from_type, abi)                                                                             \
    SYNC_PAIR(cuMemcpy##kind##abi, (to_type to, from_type from, size_t bytes), (to, from, bytes)) {                       \
        fake_wait(NULL);                                                                                                  \
        return copy(HOST(to), HOST(from), bytes);                                                                         \
    }                                                                                                                     \
    ASYNC_PAIR(cuMemcpy##kind##Async##abi, (to_type to, from_type from, size_t bytes, CUstream on UNUSED), (to, from, bytes, on)) { \
        return copy(HOST(to), HOST(from), bytes);                                                                         \
    }
COPIES(, CUdeviceptr, CUdeviceptr, )
COPIES(HtoD, CUdeviceptr, const void *, _v2)
COPIES(DtoH, void *, CUdeviceptr, _v2)
COPIES(DtoD, CUdeviceptr, CUdeviceptr, _v2)
SYNC_PAIR(cuMemcpyPeer, (CUdeviceptr to, CUcontext at UNUSED, CUdeviceptr from, CUcontext from_at UNUSED, size_t bytes), (to, at, from, from_at, bytes)) {
    return copy(HOST(to), HOST(from), bytes);
}
ASYNC_PAIR(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext at UNUSED, CUdeviceptr from, CUcontext from_at UNUSED, size_t bytes, CUstream on UNUSED), (to, at, from, from_at, bytes, on)) {
    return copy(HOST(to), HOST(from), bytes);
}
static char *corner(CUmemorytype kind, const void *host, CUdeviceptr device, size_t pitch, size_t x, size_t y) {
    char *start = kind == CU_MEMORYTYPE_HOST ? (char *)host : HOST(device);
    return start + y * pitch + x;
}
static CUresult copy_plane(const CUDA_MEMCPY2D *how) {
    if (how->srcMemoryType == CU_MEMORYTYPE_ARRAY || how->dstMemoryType == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
    const char *from = corner(how->srcMemoryType, how->srcHost, how->srcDevice, how->srcPitch, how->srcXInBytes, how->srcY);
    char *to = corner(how->dstMemoryType, how->dstHost, how->dstDevice, how->dstPitch, how->dstXInBytes, how->dstY);
    for (size_t row = 0; row < how->Height; row++) memmove(to + row * how->dstPitch, from + row * how->srcPitch, how->WidthInBytes);
    return needs_context();
}
SYNC_PAIR(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *how), (how)) { return copy_plane(how); }
SYNC_PAIR(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *how), (how)) { return copy_plane(how); }
ASYNC_PAIR(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *how, CUstream on UNUSED), (how, on)) { return copy_plane(how); }

/* What is filled already is copied behind itself: a call for each value would take seconds for a GiB. */
static void fill_row(char *row, const void *value, size_t size, size_t bytes) {
    if (!bytes) return;
    memcpy(row, value, size);
    for (size_t done = size, part; done < bytes; done += part) {
        part = done < bytes - done ? done : bytes - done;
        if (part > 1 << 16) part = 1 << 16;
        memcpy(row + done, row, part);
    }
}
static CUresult fill(CUdeviceptr to, size_t pitch, const void *value, size_t size, size_t width, size_t height) {
    CUresult status = needs_context();
    for (size_t y = 0; y < height && status == CUDA_SUCCESS; y++)
        fill_row(HOST(to) + y * pitch, value, size, width * size);
    return status;
}
#define FILLS(bits, type)                                                                                               \
    SYNC_PAIR(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count), (to, value, count)) {                   \
        return fill(to, 0, &value, sizeof value, count, 1);                                                             \
    }                                                                                                                   \
    ASYNC_PAIR(cuMemsetD##bits##Async, (CUdeviceptr to, type value, size_t count, CUstream on UNUSED), (to, value, count, on)) { \
        return fill(to, 0, &value, sizeof value, count, 1);                                                             \
    }                                                                                                                   \
    SYNC_PAIR(cuMemsetD2D##bits##_v2, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height), (to, pitch, value, width, height)) { \
        return fill(to, pitch, &value, sizeof value, width, height);                                                    \
    }                                                                                                                   \
    ASYNC_PAIR(cuMemsetD2D##bits##Async, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream on UNUSED), (to, pitch, value, width, height, on)) { \
        return fill(to, pitch, &value, sizeof value, width, height);                                                    \
    }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
