/* The context switch for AArch64 under AAPCS64 (Linux, macOS, the BSDs).
 *
 * The handle of a suspended context is its stack pointer, which points at
 *
 *      0  x19 .. x28, x29 (frame pointer), x30 (the address to return to)
 *     96  d8 .. d15
 *    160  fpcr
 *
 * The ABI requires a called function to preserve no more than this; x18
 * belongs to the platform and is not touched.  The switch returns by `ret`,
 * for the return-address prediction and because `ret` needs no landing pad
 * under branch target identification.  Only a new context is entered by a
 * branch: see root.  The signal mask is not switched.
 */
#include "context/sanitizers.h"

#if defined(__aarch64__) && !defined(_WIN32) && \
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
#define FUNCTION(name) .type name, %function
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

#define FRAME 176
#define BTI_C hint #34

    .text

/* void SWITCH(pf_context *from, pf_context *to): handle is the first field */
    .p2align 6
    .globl SYM_(SWITCH)
    HIDE_(SWITCH)
    FUNCTION_(SWITCH)
SYM_(SWITCH):
    .cfi_startproc
    BTI_C
    sub sp, sp, #FRAME
    .cfi_def_cfa_offset FRAME
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    .cfi_offset x19, -176
    .cfi_offset x20, -168
    .cfi_offset x21, -160
    .cfi_offset x22, -152
    .cfi_offset x23, -144
    .cfi_offset x24, -136
    .cfi_offset x25, -128
    .cfi_offset x26, -120
    .cfi_offset x27, -112
    .cfi_offset x28, -104
    .cfi_offset x29, -96
    .cfi_offset x30, -88
L(leave):
    mrs x9, fpcr
    str x9, [sp, #160]
    mov x10, sp
    str x10, [x0]
    ldr x10, [x1]
    mov sp, x10             /* now on the other stack, same frame layout */
    ldr x10, [sp, #160]
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    cmp x9, x10             /* writing fpcr drains the pipeline, so it is */
    b.eq 1f                 /* written only if the value changes */
    msr fpcr, x10
1:
    add sp, sp, #FRAME
    .cfi_def_cfa_offset 0
    adr x9, L(root_entry)
    cmp x9, x30
    b.eq L(root_entry)
    ret
    .cfi_endproc
    END_(SWITCH)

/* The outermost frame of every context.  The return address is undefined in
 * the caller, so debuggers and unwinders stop here.  x19 holds the address of
 * the pf_start, where the stack begins; x29 is 0.
 *
 * The return-address predictor sees a context that runs from beginning to end
 * without a switch as a function that the switch calls.  This frame is not
 * entered by `ret`, which would use up the prediction of the code that
 * switched.  pf_context_main is called, and returns; then the `ret` that
 * leaves the context for good matches that prediction. */
    .p2align 4
    FUNCTION(root)
root:
    .cfi_startproc
    .cfi_undefined x30
    nop
L(root_entry):
    mov x0, x19
    bl SYM(pf_context_main)
    mov x1, x0
    ldr x0, [sp, #16]       /* pf_start.context */
    adr x9, L(ended)
    sub sp, sp, #FRAME      /* a frame with unset registers */
    str x9, [sp, #88]
    b L(leave)
L(ended):
    brk #1                  /* a switch to a context that has ended */
    .cfi_endproc
    END(root)

/* void *pf_context_lay(char *top, pf_start *start) */
    .p2align 4
    .globl SYM(pf_context_lay)
    HIDE(pf_context_lay)
    FUNCTION(pf_context_lay)
SYM(pf_context_lay):
    .cfi_startproc
    BTI_C
    sub x0, x0, #FRAME
    adr x9, L(root_entry)
    mrs x10, fpcr
    stp x1, xzr, [x0]
    stp xzr, xzr, [x0, #16]
    stp xzr, xzr, [x0, #32]
    stp xzr, xzr, [x0, #48]
    stp xzr, xzr, [x0, #64]
    stp xzr, x9, [x0, #80]
    stp xzr, xzr, [x0, #96]
    stp xzr, xzr, [x0, #112]
    stp xzr, xzr, [x0, #128]
    stp xzr, xzr, [x0, #144]
    stp x10, xzr, [x0, #160]
    ret
    .cfi_endproc
    END(pf_context_lay)

#endif

#if defined(__ELF__) && defined(__aarch64__)
    .hidden pf_context_main
    /* Branch targets are marked (bit 0).  Return addresses are not signed
     * here and guarded control stacks are not switched: their bits stay 0. */
    .section .note.gnu.property, "a", %note
    .p2align 3
    .long 4                 /* name size */
    .long 16                /* descriptor size */
    .long 5                 /* NT_GNU_PROPERTY_TYPE_0 */
    .asciz "GNU"
    .long 0xc0000000        /* GNU_PROPERTY_AARCH64_FEATURE_1_AND */
    .long 4
    .long 1
    .long 0
#endif

#if defined(__ELF__)
    .section .note.GNU-stack, "", %progbits
#endif
