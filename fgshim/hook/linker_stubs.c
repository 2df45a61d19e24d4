/* The hook's dlsym, dlvsym, dlopen and dlmopen.
 *
 * The dynamic linker looks at its caller's return address, so it must be reached by a jump that leaves this address in
 * place. A call from a C wrapper would change what RTLD_NEXT and RTLD_DEFAULT mean, and whose RUNPATH dlopen uses.
 *
 * FG_STUB(name, then) exports `name`. It calls fg_<name> (lookup.pxi) with the three arguments and the caller's address.
 * fg_<name> returns a value, which the stub returns, or an address to jump to with the original arguments. `then`
 * changes the arguments before that jump: it clears RTLD_DEEPBIND, unless the value is not 0. */
#if defined(__x86_64__)
#define FG_STUB(name, then)                                                                                        \
    __asm__(".pushsection .text." name ",\"ax\",@progbits; .globl " name "; .type " name ",@function; " name ":"   \
            ".cfi_startproc; endbr64; push %rdi; .cfi_adjust_cfa_offset 8; push %rsi; .cfi_adjust_cfa_offset 8;"   \
            "push %rdx; .cfi_adjust_cfa_offset 8; mov 24(%rsp), %rcx; call fg_" name "; mov %rdx, %r11;"           \
            "pop %rdx; .cfi_adjust_cfa_offset -8; pop %rsi; .cfi_adjust_cfa_offset -8;"                            \
            "pop %rdi; .cfi_adjust_cfa_offset -8; test %r11, %r11; jz 1f;" then " jmp *%r11; 1: ret;"              \
            ".cfi_endproc; .size " name ", . - " name "; .popsection")
FG_STUB("dlsym", "");
FG_STUB("dlvsym", "");
FG_STUB("dlopen", "test %rax, %rax; jnz 2f; and $-9, %esi; 2:");
FG_STUB("dlmopen", "test %rax, %rax; jnz 2f; and $-9, %edx; 2:");
#elif defined(__aarch64__)
#define FG_STUB(name, then)                                                                                        \
    __asm__(".pushsection .text." name ",\"ax\",@progbits; .globl " name "; .type " name ",%function; " name ":"   \
            ".cfi_startproc; hint #34; stp x29, x30, [sp, #-48]!; .cfi_adjust_cfa_offset 48;"                      \
            ".cfi_rel_offset x29, 0; .cfi_rel_offset x30, 8; mov x29, sp; stp x0, x1, [sp, #16];"                  \
            "str x2, [sp, #32]; mov x3, x30; bl fg_" name "; mov x17, x0; mov x16, x1; ldp x0, x1, [sp, #16];"     \
            "ldr x2, [sp, #32]; ldp x29, x30, [sp], #48; .cfi_adjust_cfa_offset -48; .cfi_restore x29;"            \
            ".cfi_restore x30; cbz x16, 1f;" then " br x16; 1: mov x0, x17; ret;"                                  \
            ".cfi_endproc; .size " name ", . - " name "; .popsection")
FG_STUB("dlsym", "");
FG_STUB("dlvsym", "");
FG_STUB("dlopen", "cbnz x17, 2f; and w1, w1, #0xfffffff7; 2:");
FG_STUB("dlmopen", "cbnz x17, 2f; and w2, w2, #0xfffffff7; 2:");
#else
#error "the hook's entries to the dynamic linker are written for x86_64 and aarch64"
#endif
