/* hakmem.h: the public interface of HAKMEM, a memory allocator that learns.
 *
 * A program that only wants a faster malloc needs nothing of this: preload libhakmem.so. The rest is for programs and
 * notebooks that link it: the hak_ family, its knobs and counters, ACE (the learner), pools of one size, placement.
 *
 * What stands between the two cdef markers is plain C declarations and is read by cffi as it is, so every declaration
 * of the interface exists once. Sizes are bytes unless a name says _pages, _blocks, _ns, _ops. A call that can fail
 * returns NULL or a negative error code and sets errno where POSIX says so; corruption of the heap ends the program
 * with one line on stderr that names the crime and the address. */
#ifndef HAKMEM_H
#define HAKMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* cdef begin */

/* --- memory ------------------------------------------------------------------------------------------------------ */

/* The malloc family. Alignment 16 (max_align_t); sizes above PTRDIFF_MAX, and any that memory cannot serve, give NULL
 * and ENOMEM. hak_malloc(0) returns a unique block. hak_free keeps errno and is no cancellation point. */
void *hak_malloc(size_t size);
void hak_free(void *block);
void *hak_calloc(size_t count, size_t size);
void *hak_realloc(void *block, size_t size);
void *hak_aligned_alloc(size_t alignment, size_t size);               /* EINVAL unless a power of two */
int hak_posix_memalign(void **block, size_t alignment, size_t size);  /* *block untouched on failure */
size_t hak_usable_size(void *block); /* bytes that belong to the caller, stable while the block lives */

/* Returns to the operating system what can be returned now: this thread's cache, the depot, idle slabs and runs.
 * Other threads' caches stay theirs. Result: bytes returned. */
size_t hak_purge(void);

/* --- build ------------------------------------------------------------------------------------------------------- */

const char *hak_build_variant(void); /* "release", "pgo", "checked", ... as the builder named it */
const char *hak_build_hash(void);    /* hash of sources, flags and compiler; "unknown" outside the builder */

/* --- knobs: every tunable, one row each in src/knobs.c ------------------------------------------------------------ */

typedef struct hak_knob_t {
    const char *name;     /* "magazine_blocks"; the environment variable is HAKMEM_ and the name in capitals */
    const char *unit;     /* "bytes", "blocks", "ms", "bool", ... */
    const char *why;      /* one line: what it trades against what */
    int64_t value;        /* in force now */
    int64_t preset;       /* default, profile and environment applied, before any hak_knob_set */
    int64_t minimum;      /* inclusive */
    int64_t maximum;      /* inclusive */
    int learnable;        /* 1: ACE may move it */
} hak_knob_t;

int hak_knob_count(void);
int hak_knob_read(int row, hak_knob_t *knob);          /* 0, or -1: no such row */
int hak_knob_set(const char *name, int64_t value);     /* 0, -1: no such knob, -2: out of range */
const char *hak_profile(void);                         /* the profile in force: "default", "lean", "hardened", ... */

/* --- statistics: every counter, one row each in src/stats.c -------------------------------------------------------- */

typedef struct hak_stat_t {
    const char *name;     /* "refills" */
    const char *unit;     /* "calls", "bytes", "blocks" */
    const char *meaning;
    uint64_t value;       /* folded over all heaps when read */
} hak_stat_t;

int hak_stat_count(void);
int hak_stat_read(hak_stat_t *rows, int capacity); /* fills up to capacity rows, returns the number filled */

/* --- the heap drawn: regions, slabs and runs as they are now, for the anatomy notebook ------------------------------ */

typedef struct hak_span_t {
    uint64_t address;     /* first byte */
    uint64_t size;        /* bytes */
    uint64_t superslab;   /* address of the region it was carved from */
    uint32_t kind;        /* 0 free, 1 slab, 2 run (mid or large), 3 growth window, 4 purged */
    uint32_t block_size;  /* slab: bytes a block */
    uint32_t blocks;      /* slab: blocks it can hold */
    uint32_t used;        /* slab: blocks handed out of it, cached ones included; run: 1 */
    uint32_t carved;      /* slab: blocks carved so far */
    uint32_t heap;        /* number of the heap that carves it, 0 none */
} hak_span_t;

typedef struct hak_magazine_t {
    uint32_t heap;        /* number of the heap */
    uint32_t block_size;
    uint32_t loaded;      /* blocks in the magazine that malloc and free use */
    uint32_t spare;       /* blocks in the full one behind it */
    uint32_t capacity;
    uint32_t depot;       /* full magazines in the shared depot, same for every heap */
} hak_magazine_t;

size_t hak_heap_walk(hak_span_t *spans, size_t capacity);           /* returns how many there are */
size_t hak_magazine_walk(hak_magazine_t *magazines, size_t capacity); /* the calling thread's exact, others' approximate */

/* --- placement ----------------------------------------------------------------------------------------------------- */

/* --- stack pool ---------------------------------------------------------------------------------------------------- */

/* --- policies ------------------------------------------------------------------------------------------------------ */

/* --- ACE ----------------------------------------------------------------------------------------------------------- */

/* cdef end */

/* --- inline: malloc and free ---------------------------------------------------------------------------------------- */

/* --- inline: stack pool --------------------------------------------------------------------------------------------- */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
