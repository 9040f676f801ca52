/* The yardsticks: the least that a switch of stacks can do on x86-64 under the
 * System V ABI.  bare_switch keeps the six registers that a called function
 * must keep, and the stack pointer.  bare_switch_fp also keeps the
 * floating-point control words, as the ABI demands.  Both return by `ret`.
 *
 *     void bare_switch(void **from, void *to);
 *     void bare_switch_fp(void **from, void *to);
 */
    .macro PUSH_REGISTERS
    pushq   %rbp
    pushq   %rbx
    pushq   %r15
    pushq   %r14
    pushq   %r13
    pushq   %r12
    .endm

    .macro POP_REGISTERS
    popq    %r12
    popq    %r13
    popq    %r14
    popq    %r15
    popq    %rbx
    popq    %rbp
    .endm

    .text
    .p2align 6
#if defined(__APPLE__)
    .globl  _bare_switch
_bare_switch:
#else
    .globl  bare_switch
    .type   bare_switch, @function
bare_switch:
#endif
    PUSH_REGISTERS
    movq    %rsp, (%rdi)
    movq    %rsi, %rsp
    POP_REGISTERS
    ret

    .p2align 6
#if defined(__APPLE__)
    .globl  _bare_switch_fp
_bare_switch_fp:
#else
    .globl  bare_switch_fp
    .type   bare_switch_fp, @function
bare_switch_fp:
#endif
    PUSH_REGISTERS
    subq    $8, %rsp
    stmxcsr (%rsp)
    fnstcw  4(%rsp)
    movq    %rsp, (%rdi)
    movq    %rsi, %rsp
    fldcw   4(%rsp)
    ldmxcsr (%rsp)
    addq    $8, %rsp
    POP_REGISTERS
    ret

#if !defined(__APPLE__)
    .section .note.GNU-stack, "", @progbits
#endif
