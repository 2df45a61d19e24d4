/* References of the hook to libc, included before everything else: in versions that glibc has had since 2.17, and weak
 * where another libc lacks the function, so that its programs start. Before glibc 2.34 some of these lie in libdl and
 * libpthread, which every program that loads the driver has. */
#ifndef FG_OLD_LIBC_H
#define FG_OLD_LIBC_H
#if defined(__x86_64__)
#define FG_BASE "GLIBC_2.2.5"
#define FG_DLADDR1 "GLIBC_2.3.3"
#define FG_ROBUST "GLIBC_2.12"
#else
#define FG_BASE "GLIBC_2.17"
#define FG_DLADDR1 FG_BASE
#define FG_ROBUST FG_BASE
#endif
#define FG_OLD(name, version) __asm__(".symver " #name ", " #name "@" version)
FG_OLD(dladdr1, FG_DLADDR1);
FG_OLD(pthread_mutex_trylock, FG_BASE);
FG_OLD(pthread_mutex_timedlock, FG_BASE);
FG_OLD(pthread_mutex_consistent, FG_ROBUST);
FG_OLD(pthread_create, FG_BASE);
FG_OLD(pthread_attr_setstacksize, FG_BASE);
#pragma weak pthread_create
#pragma weak pthread_attr_init
#pragma weak pthread_attr_destroy
#pragma weak pthread_attr_setstacksize
#pragma weak pthread_attr_setdetachstate
#pragma weak dladdr1
#pragma weak pthread_mutex_trylock
#pragma weak pthread_mutex_timedlock
#pragma weak pthread_mutex_consistent
#pragma weak __register_atfork
#pragma weak dl_iterate_phdr
#endif
