/* RTLD_DEEPBIND: with this flag a library finds its own dependencies, such as libc and the driver, before the hook. */
#ifndef FG_DEEP_H
#define FG_DEEP_H

#pragma GCC visibility push(hidden)
/* Return 1 if the library at a path, which contains a slash, has nothing to do with CUDA: it refers to no function of
 * CUDA, NVML or the dynamic linker, and all libraries that it needs are loaded. 0 also if that cannot be found out. */
int fg_may_bind_deep(const char *path);
#pragma GCC visibility pop
#endif
