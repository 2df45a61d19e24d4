/* Functions that glibc exports to libraries without a public header. */
#ifndef FG_LIBC_SYMBOLS_H
#define FG_LIBC_SYMBOLS_H
/* pthread_atfork for a library that has no libc_nonshared.a part; the last argument is the library's handle. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);
#endif
