/* bodies.h: what one thread can do to an allocator.
 *
 * A body does n iterations on its lane and returns the operations done. It is inlined wherever it is named, with the
 * backend as a constant. All sizes and orders come from a seeded generator, so two allocators see the same sequence.
 * The next call goes on with the blocks that one call leaves alive; a slot that holds nothing is NULL between calls. */
#ifndef HAK_BENCH_BODIES_H
#define HAK_BENCH_BODIES_H

#include "verbs.h"

#define BODY INLINE uint64_t

/* --- chance ------------------------------------------------------------------------------------------------------- */

/* xorshift64 (Marsaglia 2003): six instructions, too few for the clock to notice. The state is never 0. */
INLINE uint64_t draw(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* 0 .. n - 1 from 32 random bits, by multiplication. */
INLINE uint32_t below(uint32_t bits, uint64_t n) { return (uint32_t)((uint64_t)bits * n >> 32); }

INLINE uint32_t uniform_size(uint32_t bits, size_t smallest, size_t largest)
{
    return (uint32_t)smallest + below(bits, largest - smallest + 1);
}

/* A size that falls as likely into each doubling from `smallest` up: the low 32 bits choose the doubling, the high ones
 * a place in it. */
INLINE uint32_t log_uniform_size(uint64_t bits, size_t smallest, unsigned doublings)
{
    uint32_t base = (uint32_t)smallest << below((uint32_t)bits, doublings);
    return base + below((uint32_t)(bits >> 32), base);
}

static unsigned doublings_of(const struct shape *shape)
{
    return 63 - (unsigned)__builtin_clzl(shape->size / shape->smallest);
}

INLINE void note_live(struct lane *lane, uint64_t bytes)
{
    if (bytes > lane->live_peak_bytes) lane->live_peak_bytes = bytes;
}

/* --- patterns: a hundred blocks of one size, all taken, all given back in some order ------------------------------ */

/* Most calls of a program name a size that its compiler knows, and what is inlined there is folded around it. So a
 * pattern is compiled for each of the published sizes, and once more for all others. */
#define PATTERN(name)                                                                                                  \
    BODY name(enum backend on, struct lane *lane, uint64_t n)                                                          \
    {                                                                                                                  \
        switch (lane->shape.size) {                                                                                    \
        case 16:                                                                                                       \
            return name##_of(on, lane, n, 16);                                                                         \
        case 32:                                                                                                       \
            return name##_of(on, lane, n, 32);                                                                         \
        case 64:                                                                                                       \
            return name##_of(on, lane, n, 64);                                                                         \
        case 128:                                                                                                      \
            return name##_of(on, lane, n, 128);                                                                        \
        default:                                                                                                       \
            return name##_of(on, lane, n, lane->shape.size);                                                           \
        }                                                                                                              \
    }

INLINE void fill(enum backend on, struct lane *lane, size_t size, uint64_t first, uint64_t step)
{
    void **block = lane->block;
    size_t slots = lane->shape.slots;
    for (size_t i = first; i < slots; i += step) touch(block[i] = take(on, size), i);
}

/* Empties the slots, which hold dangling pointers after a round, and notes how much was live. */
INLINE void forget(struct lane *lane, uint64_t first, uint64_t step)
{
    for (size_t i = first; i < lane->shape.slots; i += step) lane->block[i] = NULL;
    note_live(lane, lane->shape.slots * lane->shape.size);
}

BODY lifo_of(enum backend on, struct lane *lane, uint64_t n, size_t size)
{
    void **block = lane->block;
    size_t slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++) {
        fill(on, lane, size, 0, 1);
        for (size_t i = slots; i-- > 0;) give(on, block[i], size);
    }
    forget(lane, 0, 1);
    return n * slots * 2;
}
PATTERN(lifo)

BODY fifo_of(enum backend on, struct lane *lane, uint64_t n, size_t size)
{
    void **block = lane->block;
    size_t slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++) {
        fill(on, lane, size, 0, 1);
        for (size_t i = 0; i < slots; i++) give(on, block[i], size);
    }
    forget(lane, 0, 1);
    return n * slots * 2;
}
PATTERN(fifo)

BODY shuffled_of(enum backend on, struct lane *lane, uint64_t n, size_t size)
{
    void **block = lane->block;
    const uint32_t *order = lane->rig->order;
    size_t slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++) {
        fill(on, lane, size, 0, 1);
        for (size_t i = 0; i < slots; i++) give(on, block[order[i]], size);
    }
    forget(lane, 0, 1);
    return n * slots * 2;
}
PATTERN(shuffled)

BODY interleaved_of(enum backend on, struct lane *lane, uint64_t n, size_t size)
{
    size_t slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++)
        for (size_t i = 0; i < slots; i++) {
            void *block = take(on, size);
            touch(block, i);
            give(on, block, size);
        }
    return n * slots * 2;
}
PATTERN(interleaved)

/* Even slots are held from the first call on, odd ones live for one round. */
BODY longlived_of(enum backend on, struct lane *lane, uint64_t n, size_t size)
{
    void **block = lane->block;
    size_t slots = lane->shape.slots;
    if (!block[0]) fill(on, lane, size, 0, 2);
    for (uint64_t k = 0; k < n; k++) {
        fill(on, lane, size, 1, 2);
        for (size_t i = 1; i < slots; i += 2) give(on, block[i], size);
    }
    forget(lane, 1, 2);
    return n * (slots / 2) * 2;
}
PATTERN(longlived)

/* --- churn: a slot is emptied and filled again -------------------------------------------------------------------- */

INLINE void put(enum backend on, struct lane *lane, size_t slot, uint32_t size)
{
    lane->block[slot] = take(on, size);
    lane->bytes[slot] = size;
}

INLINE void drop(enum backend on, struct lane *lane, size_t slot)
{
    if (lane->block[slot]) give(on, lane->block[slot], lane->bytes[slot]);
}

/* All slots hold blocks; a random one is replaced by a block of a size drawn uniformly. */
BODY random_mixed(enum backend on, struct lane *lane, uint64_t n)
{
    void **block = lane->block;
    uint32_t *bytes = lane->bytes;
    struct shape shape = lane->shape;
    uint64_t random = lane->random;
    if (!block[0])
        for (size_t i = 0; i < shape.slots; i++) {
            put(on, lane, i, uniform_size((uint32_t)(draw(&random) >> 32), shape.smallest, shape.size));
            touch(block[i], i);
        }
    for (uint64_t k = 0; k < n; k++) {
        uint64_t bits = draw(&random);
        uint32_t slot = below((uint32_t)bits, shape.slots);
        uint32_t size = uniform_size((uint32_t)(bits >> 32), shape.smallest, shape.size);
        give(on, block[slot], bytes[slot]);
        touch(block[slot] = take(on, size), k);
        bytes[slot] = size;
    }
    lane->random = random;
    return n;
}

/* The oldest block is replaced; all have the same size. */
BODY oldest(enum backend on, struct lane *lane, uint64_t n)
{
    size_t size = lane->shape.size, slots = lane->shape.slots, slot = 0;
    for (uint64_t k = 0; k < n; k++) {
        drop(on, lane, slot);
        put(on, lane, slot, (uint32_t)size);
        touch_pages(lane->block[slot], size, k);
        slot = slot + 1 == slots ? 0 : slot + 1;
    }
    return n;
}

/* A random slot is replaced by a block of 0.5 to 1.5 times the size. */
BODY varying(enum backend on, struct lane *lane, uint64_t n)
{
    struct shape shape = lane->shape;
    uint64_t random = lane->random;
    for (uint64_t k = 0; k < n; k++) {
        uint64_t bits = draw(&random);
        uint32_t slot = below((uint32_t)bits, shape.slots);
        uint32_t size = (uint32_t)(shape.size / 2) + below((uint32_t)(bits >> 32), shape.size);
        drop(on, lane, slot);
        put(on, lane, slot, size);
        touch_pages(lane->block[slot], size, k);
    }
    lane->random = random;
    return n;
}

/* A random block is replaced; sizes are log-uniform, from the smallest up to the size. */
BODY mixed(enum backend on, struct lane *lane, uint64_t n)
{
    struct shape shape = lane->shape;
    uint64_t random = lane->random;
    unsigned doublings = doublings_of(&shape);
    for (uint64_t k = 0; k < n; k++) {
        uint32_t slot = below((uint32_t)(draw(&random) >> 32), shape.slots);
        uint32_t size = log_uniform_size(draw(&random), shape.smallest, doublings);
        drop(on, lane, slot);
        put(on, lane, slot, size);
        touch_pages(lane->block[slot], size, k);
    }
    lane->random = random;
    return n;
}

/* The same by calloc; the first and the last byte must be zero, and are left dirty. */
BODY zeroed(enum backend on, struct lane *lane, uint64_t n)
{
    struct shape shape = lane->shape;
    uint64_t random = lane->random;
    unsigned doublings = doublings_of(&shape);
    for (uint64_t k = 0; k < n; k++) {
        uint32_t slot = below((uint32_t)(draw(&random) >> 32), shape.slots);
        uint32_t size = log_uniform_size(draw(&random), shape.smallest, doublings);
        drop(on, lane, slot);
        char *block = take_zeroed(on, size);
        if (block[0] | block[size - 1]) die(EXIT_WRONG_DATA, "calloc(1, %u) returned memory that is not zero", size);
        touch_pages(block, size, 255);
        touch(block + size - 1, 1);
        lane->block[slot] = block;
        lane->bytes[slot] = size;
    }
    lane->random = random;
    return n;
}

/* The vectors of all slots double in turn from the smallest size, as long as they fit the largest; each new half is
 * touched. */
BODY growing(enum backend on, struct lane *lane, uint64_t n)
{
    void **block = lane->block;
    struct shape shape = lane->shape;
    size_t longest = shape.smallest << doublings_of(&shape);
    note_live(lane, longest * shape.slots);
    for (uint64_t k = 0; k < n; k++) {
        for (size_t i = 0; i < shape.slots; i++) touch(block[i] = resize(on, NULL, 0, shape.smallest), 1);
        for (size_t size = shape.smallest * 2; size <= longest; size *= 2)
            for (size_t i = 0; i < shape.slots; i++) {
                char *vector = resize(on, block[i], size / 2, size);
                if (vector[0] != 1) die(EXIT_WRONG_DATA, "realloc to %zu bytes lost the first byte of the block", size);
                touch_pages(vector + size / 2, size / 2, k);
                block[i] = vector;
            }
        for (size_t i = 0; i < shape.slots; i++) {
            give(on, block[i], longest);
            block[i] = NULL;
        }
    }
    return n * shape.slots;
}

/* --- fragmentation: fill, free a random half, refill with other sizes, drop every fourth -------------------------- */

enum { FRAG_ROUNDS = 50 };

struct frag {
    uint64_t random, live, ops;
    unsigned doublings;
};

INLINE void frag_fill(enum backend on, struct lane *lane, struct frag *f, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (lane->block[i]) continue;
        uint32_t size = log_uniform_size(draw(&f->random), lane->shape.smallest, f->doublings);
        put(on, lane, i, size);
        touch(lane->block[i], i);
        touch((char *)lane->block[i] + size - 1, i);
        f->ops++;
        note_live(lane, f->live += size);
    }
}

INLINE void frag_drop(enum backend on, struct lane *lane, struct frag *f, size_t slot)
{
    if (!lane->block[slot]) return;
    give(on, lane->block[slot], lane->bytes[slot]);
    lane->block[slot] = NULL;
    f->live -= lane->bytes[slot];
    f->ops++;
}

/* Drops live blocks at random, one in 2^order. */
INLINE void frag_thin(enum backend on, struct lane *lane, struct frag *f, size_t from, size_t to, unsigned order)
{
    for (size_t i = from; i < to; i++)
        if (lane->block[i] && !(draw(&f->random) >> 40 & ((1u << order) - 1))) frag_drop(on, lane, f, i);
}

INLINE struct frag frag_begin(const struct lane *lane)
{
    return (struct frag){.random = lane->rig->options->seed * 2654435761u + 1, .doublings = doublings_of(&lane->shape)};
}

/* Each iteration is the same: rounds over one set of slots, then everything freed. */
BODY frag(enum backend on, struct lane *lane, uint64_t n)
{
    uint64_t ops = 0;
    size_t slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++) {
        struct frag f = frag_begin(lane);
        for (uint64_t round = 0; round < FRAG_ROUNDS; round++) {
            frag_fill(on, lane, &f, 0, slots);
            frag_thin(on, lane, &f, 0, slots, 1);
            frag_fill(on, lane, &f, 0, slots);
            for (size_t i = round % 4; i < slots; i += 4) frag_drop(on, lane, &f, i);
        }
        for (size_t i = 0; i < slots; i++) frag_drop(on, lane, &f, i);
        ops += f.ops;
    }
    return ops;
}

/* The same, but each round has slots of its own and most of the older rounds' blocks stay: the heap grows. */
BODY frag_grow(enum backend on, struct lane *lane, uint64_t n)
{
    uint64_t ops = 0;
    size_t slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++) {
        struct frag f = frag_begin(lane);
        for (uint64_t round = 0; round < FRAG_ROUNDS; round++) {
            size_t from = round * slots, to = from + slots;
            frag_fill(on, lane, &f, from, to);
            frag_thin(on, lane, &f, 0, from, 4);
            frag_thin(on, lane, &f, from, to, 1);
            frag_fill(on, lane, &f, from, to);
            for (size_t i = from; i < to; i += 4) frag_drop(on, lane, &f, i);
        }
        for (size_t i = 0; i < FRAG_ROUNDS * slots; i++) frag_drop(on, lane, &f, i);
        ops += f.ops;
    }
    return ops;
}

/* A cache that holds 8 times the smallest size for each slot. Its values grow with the square of the time, the longest
 * from 16 times the smallest size to the size. The oldest value makes room; but one in four was asked for again and
 * stays for another turn. In the end everything is freed. */
enum { DRIFT_TURNS = 32 }; /* values that pass through, for each slot */

BODY drift(enum backend on, struct lane *lane, uint64_t n)
{
    struct shape shape = lane->shape;
    uint64_t pairs = shape.slots * DRIFT_TURNS, most = shape.slots * 8 * shape.smallest, random = lane->random;
    uint64_t first = shape.size < 16 * shape.smallest ? shape.size : 16 * shape.smallest;
    for (uint64_t k = 0; k < n; k++) {
        uint64_t head = 0, tail = 0, live = 0;
        for (uint64_t i = 0; i < pairs; i++) {
            uint64_t bits = draw(&random), largest = first + (shape.size - first) * i / pairs * i / pairs;
            uint32_t size = uniform_size((uint32_t)(bits >> 32), largest / 16, largest);
            for (; tail != head && (live + size > most || head - tail == shape.slots); tail++) {
                size_t oldest = tail % shape.slots, newest = head % shape.slots;
                if ((draw(&random) >> 32) % 4 == 0) {
                    void *block = lane->block[oldest];
                    lane->block[oldest] = NULL;
                    lane->block[newest] = block;
                    lane->bytes[newest] = lane->bytes[oldest];
                    head++;
                    continue;
                }
                live -= lane->bytes[oldest];
                drop(on, lane, oldest);
                lane->block[oldest] = NULL;
            }
            size_t slot = head++ % shape.slots;
            put(on, lane, slot, size);
            touch_pages(lane->block[slot], size, i);
            note_live(lane, live += size);
        }
        for (; tail != head; tail++) {
            drop(on, lane, tail % shape.slots);
            lane->block[tail % shape.slots] = NULL;
        }
    }
    lane->random = random;
    return n * pairs;
}

/* A list is built, walked once, and torn down in random order. The walk is timed, too: it is cheap where the heap has
 * handed out neighbouring blocks one after the other, and costs a miss at each step where blocks come back in the order
 * in which they were freed. */
BODY rebuild(enum backend on, struct lane *lane, uint64_t n)
{
    void **block = lane->block;
    const uint32_t *order = lane->rig->order;
    size_t size = lane->shape.size, slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++) {
        void **list = NULL;
        for (size_t i = 0; i < slots; i++) {
            void **node = block[i] = take(on, size);
            *node = list;
            list = node;
        }
        for (; list != NULL; list = *list) __asm__ volatile("" : "+r"(list));
        for (size_t i = 0; i < slots; i++) give(on, block[order[i]], size);
    }
    forget(lane, 0, 1);
    return n * slots;
}

#endif
