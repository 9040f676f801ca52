/* What a switch costs here, without a host: the figures to compare with.
 *
 * Each runs `n` switches and returns the seconds they took, or a negative
 * number if there was no stack (or, for the bare ones, where there is no
 * assembly).
 */
#ifndef PF_SELFBENCH_H
#define PF_SELFBENCH_H

#include <stdint.h>

/* Two contexts take turns through pf_context_switch. */
double pf_bench_switch(uint64_t n);

/* A ring of `k` contexts, the thread's own among them. */
double pf_bench_ring(unsigned k, uint64_t n);

/* The same through a copy of the assembly without contexts: what the processor
 * needs for a switch. */
double pf_bench_bare(uint64_t n);
double pf_bench_bare_ring(unsigned k, uint64_t n);

#endif
