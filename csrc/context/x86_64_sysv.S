/* The context switch for x86-64 under the System V ABI (Linux, macOS, the
 * BSDs).
 *
 * The handle of a suspended context is its stack pointer, which points at
 *
 *      0  mxcsr (4 bytes), x87 control word (2)
 *      8  r12, r13, r14, r15, rbx, rbp
 *     56  the address to return to
 *
 * The ABI requires a called function to preserve no more than this; the caller
 * saves the rest.  The switch returns by `ret`, which keeps the processor's
 * return-address prediction right; a resume by `jmp` makes every frame above
 * mispredict.  Only a new context is entered by a jump: see root.  The signal
 * mask is not switched.
 */
#include "context/sanitizers.h"

#if defined(__x86_64__) && !defined(_WIN32) && \
    !defined(PYFIBER_CONTEXT_UCONTEXT)

/* L(name) is a label that only the assembler sees.  In Mach-O any other label
 * begins a new part of the section, and frame information must not cross
 * parts. */
#if defined(__APPLE__)
#define SYM(name) _##name
#define L(name) L##name
#define HIDE(name) .private_extern _##name
#define FUNCTION(name)
#define END(name)
#else
#define SYM(name) name
#define L(name) .L##name
#define HIDE(name) .hidden name
#define FUNCTION(name) .type name, @function
#define END(name) .size name, . - name
#endif

/* Under a sanitizer only the wrapper in context.c calls this routine. */
#if PF_WITH_ASAN || PF_WITH_TSAN
#define SWITCH pf_context_jump
#else
#define SWITCH pf_context_switch
#endif

#define SYM_(name) SYM(name)
#define HIDE_(name) HIDE(name)
#define FUNCTION_(name) FUNCTION(name)
#define END_(name) END(name)

    .text

/* void SWITCH(pf_context *from, pf_context *to): handle is the first field */
    .p2align 6
    .globl SYM_(SWITCH)
    HIDE_(SWITCH)
    FUNCTION_(SWITCH)
SYM_(SWITCH):
    .cfi_startproc
    endbr64
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    pushq %rbx
    .cfi_def_cfa_offset 24
    .cfi_offset %rbx, -24
    pushq %r15
    .cfi_def_cfa_offset 32
    .cfi_offset %r15, -32
    pushq %r14
    .cfi_def_cfa_offset 40
    .cfi_offset %r14, -40
    pushq %r13
    .cfi_def_cfa_offset 48
    .cfi_offset %r13, -48
    pushq %r12
    .cfi_def_cfa_offset 56
    .cfi_offset %r12, -56
    subq $8, %rsp
    .cfi_def_cfa_offset 64
L(leave):
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    leaq L(root_entry)(%rip), %rax
    movq %rsp, %rdx
    movq %rsp, (%rdi)
    movq (%rsi), %rsp       /* now on the other stack, same frame layout */
    cmpq %rax, 56(%rsp)
    je L(begin)
    fldcw 4(%rsp)
    ldmxcsr (%rsp)
    addq $8, %rsp
    .cfi_def_cfa_offset 56
    popq %r12
    .cfi_def_cfa_offset 48
    .cfi_restore %r12
    popq %r13
    .cfi_def_cfa_offset 40
    .cfi_restore %r13
    popq %r14
    .cfi_def_cfa_offset 32
    .cfi_restore %r14
    popq %r15
    .cfi_def_cfa_offset 24
    .cfi_restore %r15
    popq %rbx
    .cfi_def_cfa_offset 16
    .cfi_restore %rbx
    popq %rbp
    .cfi_def_cfa_offset 8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    END_(SWITCH)

/* The outermost frame of every context.  rip is undefined in the caller, so
 * debuggers and unwinders stop here.  rbx holds the address of the pf_start,
 * where the 16-byte aligned stack begins.
 *
 * The return-address predictor sees a context that runs from beginning to end
 * without a switch as a function that the switch calls.  This frame is not
 * entered by `ret`, which would use up the prediction of the code that
 * switched.  pf_context_main is called, and returns; then the `ret` that
 * leaves the context for good matches that prediction.  (This avoids two
 * mispredictions: 6 % of the time to make, run and end a fiber.)
 *
 * A new context's control words were usually stored a moment ago, by
 * pf_context_lay.  The instructions that load them would wait for that store
 * (70 cycles on Zen 5), so they are first compared with the current words; a
 * predicted comparison does not wait. */
    .p2align 4
    FUNCTION(root)
root:
    .cfi_startproc
    .cfi_undefined rip
L(begin):                    /* rdx: the saved stack pointer of the context
                                that was left */
    movl (%rdx), %eax
    cmpl %eax, (%rsp)
    jne L(other_words)
    movzwl 4(%rdx), %eax
    cmpw %ax, 4(%rsp)
    jne L(other_words)
L(same_words):
    movq 40(%rsp), %rbx
    addq $64, %rsp
L(root_entry):
    xorl %ebp, %ebp
    movq %rbx, %rdi
    call SYM(pf_context_main)
    movq %rax, %rsi
    movq 16(%rsp), %rdi     /* pf_start.context */
    leaq L(ended)(%rip), %rax
    movq %rax, -8(%rsp)
    subq $64, %rsp          /* a frame with unset registers */
    jmp L(leave)
L(other_words):
    fldcw 4(%rsp)
    ldmxcsr (%rsp)
    jmp L(same_words)
L(ended):
    ud2                     /* a switch to a context that has ended */
    .cfi_endproc
    END(root)

/* void *pf_context_lay(char *top, pf_start *start) */
    .p2align 4
    .globl SYM(pf_context_lay)
    HIDE(pf_context_lay)
    FUNCTION(pf_context_lay)
SYM(pf_context_lay):
    .cfi_startproc
    endbr64
    leaq L(root_entry)(%rip), %rax
    xorl %ecx, %ecx
    movq %rax, -8(%rdi)
    movq %rcx, -16(%rdi)    /* rbp: no frame above */
    movq %rsi, -24(%rdi)    /* rbx */
    movq %rcx, -32(%rdi)
    movq %rcx, -40(%rdi)
    movq %rcx, -48(%rdi)
    movq %rcx, -56(%rdi)
    movq %rcx, -64(%rdi)
    stmxcsr -64(%rdi)
    fnstcw -60(%rdi)
    leaq -64(%rdi), %rax
    ret
    .cfi_endproc
    END(pf_context_lay)

#endif

#if defined(__ELF__) && defined(__x86_64__)
    .hidden pf_context_main
    /* Indirect branches are tracked (bit 0); shadow stacks are not switched,
     * so their bit (1) stays clear and the loader turns them off. */
    .section .note.gnu.property, "a", @note
    .p2align 3
    .long 4                 /* name size */
    .long 16                /* descriptor size */
    .long 5                 /* NT_GNU_PROPERTY_TYPE_0 */
    .asciz "GNU"
    .long 0xc0000002        /* GNU_PROPERTY_X86_FEATURE_1_AND */
    .long 4
    .long 1
    .long 0
#endif

#if defined(__ELF__)
    .section .note.GNU-stack, "", %progbits
#endif
