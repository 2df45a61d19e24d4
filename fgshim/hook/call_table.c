#include "call_table.h"

/* The hook's own functions by address alone: their types differ, and Cython declares them. */
#define FG_DECLARE(export, ...) extern char fg_at_##export[] __asm__(#export);
FG_CALLS(FG_DECLARE)

#define FG_ROW(export, library, name, version, own_stream) \
    {#export, FG_##library, name, version, own_stream, fg_at_##export},
#define FG_PLAIN_ROW(export, library) {#export, FG_##library, "", 0, 0, 0},
const fg_call fg_calls[FG_ALL] = {FG_CALLS(FG_ROW) FG_ASKED(FG_PLAIN_ROW)};

void *fg_real[FG_ALL];
void *fg_inner[FG_ALL];
void *fg_handle[3];
int fg_bound[3], fg_knows_inner;
