/* base.h: words for compiler and machine. The ground floor: knows nothing of memory management. */
#ifndef HAK_BASE_H
#define HAK_BASE_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef HAK_CHECKED
#define HAK_CHECKED 0 /* 1: the checked build, which verifies what the others trust: see MUST (os.c) */
#endif

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define NOINLINE __attribute__((noinline))
#define COLD __attribute__((cold, noinline))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define HIT __attribute__((aligned(CACHE_LINE))) /* so the hit spans one or two cache lines wherever it is linked */
#define ACE_ONLY __attribute__((unused))         /* nothing calls it in a build without ACE */
#define THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))
#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define CACHE_LINE 64u  /* bytes; also the padding that keeps two threads' words apart */
#define CACHE_PAIR 128u /* bytes: two lines that a core may fetch together */

static ALWAYS_INLINE size_t align_up(size_t n, size_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }
static ALWAYS_INLINE size_t align_down(size_t n, size_t alignment) { return n & ~(alignment - 1); }
static ALWAYS_INLINE bool is_power_of_two(size_t n) { return n != 0 && (n & (n - 1)) == 0; }
static ALWAYS_INLINE unsigned log2_floor(size_t n) { return 63u - (unsigned)__builtin_clzll(n); } /* n > 0 */
static ALWAYS_INLINE unsigned lowest_bit(uint64_t n) { return (unsigned)__builtin_ctzll(n); }     /* n > 0 */
static ALWAYS_INLINE bool bit_of(const uint64_t *bits, size_t i) { return (bits[i / 64] >> i % 64 & 1) != 0; }
static ALWAYS_INLINE size_t size_min(size_t a, size_t b) { return a < b ? a : b; }
static ALWAYS_INLINE size_t size_max(size_t a, size_t b) { return a > b ? a : b; }

/* Access to a word that others may read or write at any time, without order: plain instructions, but no data race. */
#define PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define POKE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

static ALWAYS_INLINE void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
