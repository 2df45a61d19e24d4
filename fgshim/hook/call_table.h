/* The table of hooked calls, and the addresses of the functions behind them.
 *
 * _calls.h is generated from fgshim/calls.py: FG_CALLS lists the hooked functions in the order of their names, FG_ASKED
 * the functions that the hook calls without hooking them. A row's number is FG_<export>. */
#ifndef FG_CALL_TABLE_H
#define FG_CALL_TABLE_H
#include "_calls.h"

enum { FG_linker, FG_cuda, FG_nvml };   /* the library that exports a function */
#define FG_NAME(export, ...) FG_##export,
enum { FG_CALLS(FG_NAME) FG_HOOKED, FG_LAST_HOOKED = FG_HOOKED - 1, FG_ASKED(FG_NAME) FG_ALL };

typedef struct {
    const char *symbol;
    int library;
    const char *name;            /* the name that cuGetProcAddress takes; "": it does not find this function */
    int version, own_stream;     /* the CUDA version of this ABI; 1: stream 0 is the calling thread's stream */
    void *hook;                  /* the hook's function; NULL: not hooked */
} fg_call;

#pragma GCC visibility push(hidden)
extern const fg_call fg_calls[FG_ALL];
extern void *fg_real[FG_ALL];    /* the library's exported functions */
extern void *fg_inner[FG_ALL];   /* the addresses that cuGetProcAddress returns, which are not exported */
extern void *fg_handle[3];       /* by library: the dlopen handle */
extern int fg_bound[3];          /* by library: 1 once fg_real is filled in */
extern int fg_knows_inner;       /* 1 once fg_inner is filled in */
#pragma GCC visibility pop
#endif
