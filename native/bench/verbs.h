/* verbs.h: the calls that are measured, on each backend, and how a block is used.
 *
 * The backend `on` is a constant wherever a verb is used, so only one direct call or inlined path remains. */
#ifndef HAK_BENCH_VERBS_H
#define HAK_BENCH_VERBS_H

#include "bench.h"

#ifdef HAK_BENCH_DIRECT
#include "hakmem.h"
#endif

/* All verbs are told sizes, which the floor's free needs. An inlined one makes use of those that the compiler knows; 0
 * is none. */
INLINE void *take(enum backend on, size_t size)
{
    if (on == ON_FLOOR) return floor_malloc(size);
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) return hak_malloc_inline(size);
#endif
    return malloc(size);
}

INLINE void give(enum backend on, void *block, size_t size)
{
    if (on == ON_FLOOR) return floor_free(block, size);
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT)
        return __builtin_constant_p(size) && size ? hak_free_sized_inline(block, size) : hak_free_inline(block);
#endif
    free(block);
}

INLINE void *resize(enum backend on, void *block, size_t old_size, size_t size)
{
    if (on == ON_FLOOR) return floor_realloc(block, old_size, size);
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) return hak_realloc(block, size);
#endif
    return realloc(block, size);
}

INLINE void *take_zeroed(enum backend on, size_t size)
{
    if (on == ON_FLOOR) return floor_calloc(size);
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) return hak_calloc(1, size);
#endif
    return calloc(1, size);
}

INLINE void *take_aligned(enum backend on, size_t alignment, size_t size)
{
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) return hak_aligned_alloc(alignment, size);
#endif
    (void)on;
    return aligned_alloc(alignment, size);
}

/* Uses a block as a program would. The store is volatile, and memory is declared changed, so the compiler can neither
 * drop nor merge the calls around it, nor an inlined push and pop. */
INLINE void touch(void *block, uint64_t value)
{
    *(volatile char *)block = (char)value;
    __asm__ volatile("" : : "r"(block) : "memory");
}

/* One byte in every page, each time on another cache line: whole-page strides would fight for one set of L1. */
INLINE void touch_pages(void *block, size_t size, uint64_t value)
{
    for (size_t at = 0; at < size; at += 4096 - CACHE_LINE) touch((char *)block + at, value);
}

#endif
