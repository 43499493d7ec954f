/* fuzz SECONDS THREADS SEED [REFUSED]: random calls against a model that knows what every block must be.
 *
 * The model is a bitmap over the address space, one bit a granule of 8 bytes: set while a live block covers it. A bit
 * found set by an allocation is an overlap, whoever the two owners are. Contents are a function of the block's number,
 * written at fixed offsets and checked at every realloc and free. Blocks wander between threads through mailboxes, and
 * workers are replaced by fresh threads, and fork, all the time. Ends with one line of figures, or with the first
 * violation.
 * REFUSED: of so many of 100 the kernel refuses the library's calls for memory, and blocks may be refused.
 * With HAK_DIRECT the calls are hak_ ones of a hakmem linked in (sanitizer builds), half of malloc and free inlined. Its
 * knobs are turned all the while where FUZZ_TURNS is set in the environment. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAK_DIRECT
#include "hakmem.h"
#define malloc(size) ((size) & 1 ? hak_malloc : hak_malloc_inline)(size)
#define calloc hak_calloc
#define realloc hak_realloc
#define free(block) ((uintptr_t)(block) & 64 ? hak_free : hak_free_inline)(block)
#define posix_memalign hak_posix_memalign
#define malloc_usable_size hak_usable_size
#define malloc_trim(keep) hak_purge()
#else
#include "kernel.h"
#endif

#ifndef FUZZ_SIZE_BITS
#define FUZZ_SIZE_BITS 23 /* fewer make more calls in the same time, where each byte is watched */
#endif

enum {
    GRANULE = 8,
    LEAF_SHIFT = 26,                              /* a leaf of the bitmap covers 64 MiB */
    LEAF_WORDS = (1 << LEAF_SHIFT) / GRANULE / 64,
    ADDRESS_BITS = 48,
    HEAD = 512, TAIL = 64, PAGE = 4096, MARK = 8, /* patterned: first 512 bytes, 8 bytes a page, last 64 */
    SLOTS = 16384,                                /* blocks a worker may own, a power of two */
    SLOTS_ALL_SIZES = 1024,                       /* while it asks for all of them */
    NARROW_BITS = 16, NARROW_BYTES = 32 << 20,    /* sizes of a doubling, up to 32 KiB, and as many bytes of them */
    MAILBOXES = 256,
    THREADS_MAX = 64,
    LIFE = 5000,                                  /* calls until a worker is replaced by a fresh thread */
    FORKS = 20,                                   /* in a row when a worker begins: those of several meet */
    SIZE_BITS = FUZZ_SIZE_BITS,                   /* sizes up to 8 MiB, log-uniform */
};
static const size_t live_max = (size_t)512 << 20;  /* of all threads together */

typedef _Atomic uint64_t leaf[LEAF_WORDS];
struct block {
    unsigned char *start; /* NULL: no block */
    size_t size, usable;
    uint64_t number;
};
struct worker {
    pthread_t thread;
    struct block blocks[SLOTS];
    uint64_t random, calls;
    unsigned narrow; /* bits of its sizes; 0: it asks for all of them */
    size_t slots;    /* it works with so many, a power of two */
};

static _Atomic(leaf *) leaves[(size_t)1 << (ADDRESS_BITS - LEAF_SHIFT)];
static struct { pthread_mutex_t lock; struct block block; } mailboxes[MAILBOXES];
static struct worker workers[THREADS_MAX];
static atomic_size_t live_bytes, live_peak;
static atomic_ullong numbers;
static _Atomic int stop;

static unsigned refused; /* of 100 */

static atomic_ullong refusals;

#ifndef HAK_DIRECT
static long before_kernel(long number, long a, long b, long c, long d, long e, long f) {
    static atomic_uint asked;
    int memory = number == SYS_mmap || number == SYS_mprotect || number == SYS_madvise;
    if (refused == 0 || !memory || (atomic_fetch_add(&asked, 1) * 2654435761u >> 16) % 100 >= refused)
        return kernel(number, a, b, c, d, e, f);
    refusals++;
    return kernel_says(ENOMEM);
}
#endif

#define VIOLATION(...) (dprintf(2, "fuzz: " __VA_ARGS__), dprintf(2, "\n"), abort())

static uint64_t next_random(struct worker *worker) {
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    return worker->random ^= worker->random << 17;
}

static size_t random_size(struct worker *worker) {
    unsigned bits = worker->narrow != 0 ? worker->narrow : (unsigned)(next_random(worker) % (SIZE_BITS + 1));
    size_t size = next_random(worker) & (((size_t)1 << bits) - 1);
    return worker->narrow != 0 ? size | (size_t)1 << (bits - 1) : size;
}

/* ---- the bitmap ---- */

static leaf *leaf_of(uintptr_t address) {
    _Atomic(leaf *) *slot = &leaves[address >> LEAF_SHIFT];
    leaf *found = atomic_load(slot);
    if (found) return found;
    leaf *fresh;
    do fresh = mmap(NULL, sizeof(leaf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while ((void *)fresh == MAP_FAILED && refused != 0);
    if ((void *)fresh == MAP_FAILED) VIOLATION("no memory for the model");
    if (atomic_compare_exchange_strong(slot, &found, fresh)) return fresh;
    munmap(fresh, sizeof(leaf));
    return found;
}

/* Sets or clears the bits of [start, start + size), a word at a time; each must have had the other value. */
static void mark(const struct block *block, int live) {
    uintptr_t granule = (uintptr_t)block->start / GRANULE;
    uintptr_t end = ((uintptr_t)block->start + block->usable + GRANULE - 1) / GRANULE;
    while (granule < end) {
        unsigned bit = granule % 64, count = end - granule < 64 - bit ? (unsigned)(end - granule) : 64 - bit;
        uint64_t bits = (count == 64 ? ~0ull : (1ull << count) - 1) << bit;
        _Atomic uint64_t *word = &(*leaf_of(granule * GRANULE))[granule / 64 % LEAF_WORDS];
        uint64_t before = live ? atomic_fetch_or(word, bits) : atomic_fetch_and(word, ~bits);
        if ((before & bits) != (live ? 0 : bits))
            VIOLATION("%s overlaps a live block: %p, %zu bytes", live ? "new block" : "freed block",
                      (void *)block->start, block->usable);
        granule += count;
    }
}

/* ---- contents ---- */

static unsigned char pattern(uint64_t number, size_t offset) {
    return (unsigned char)((number * 0x9e3779b97f4a7c15u >> 40) + offset * 7 + (offset >> 12));
}

/* The next patterned offset at or after `offset` in a block of this size. */
static size_t next_marked(size_t offset, size_t size) {
    if (offset < HEAD || offset % PAGE < MARK || offset + TAIL >= size) return offset;
    size_t page = (offset / PAGE + 1) * PAGE;
    return page + TAIL < size ? page : size - TAIL;
}

#define EACH_MARKED(i, size) (size_t i = 0; (i = next_marked(i, size)) < (size); i++)

static void write_pattern(struct block *block) {
    for EACH_MARKED (i, block->usable) block->start[i] = pattern(block->number, i);
}

/* Checks what the first `kept` bytes must hold. */
static void check_pattern(const struct block *block, size_t kept, const char *when) {
    for EACH_MARKED (i, block->usable) {
        if (i >= kept) break;
        if (block->start[i] != pattern(block->number, i))
            VIOLATION("%s: byte %zu of %p (%zu bytes) changed", when, i, (void *)block->start, block->size);
    }
}

static void check_zero(const struct block *block) {
    if (block->size == 0 || (block->start[0] == 0 && !memcmp(block->start, block->start + 1, block->size - 1))) return;
    VIOLATION("calloc: %p of %zu bytes is not zero", (void *)block->start, block->size);
}

/* ---- calls ---- */

/* Takes what a call gave. Its alignment is at least the one that an object of its size may need. */
static void adopt(struct block *block, unsigned char *start, size_t size, size_t alignment) {
    while (alignment < 16 && alignment * 2 <= size) alignment *= 2;
    *block = (struct block){start, size, malloc_usable_size(start), atomic_fetch_add(&numbers, 1)};
    if (block->usable < size) VIOLATION("usable size %zu of %p below the size %zu", block->usable, (void *)start, size);
    if ((uintptr_t)start % alignment) VIOLATION("%p is not aligned to %zu", (void *)start, alignment);
    mark(block, 1);
    write_pattern(block);
    size_t live = atomic_fetch_add(&live_bytes, block->usable) + block->usable, peak = live_peak;
    while (live > peak && !atomic_compare_exchange_weak(&live_peak, &peak, live)) {}
}

static void let_go(struct block *block, const char *when) {
    if (malloc_usable_size(block->start) != block->usable)
        VIOLATION("%s: usable size of %p changed", when, (void *)block->start);
    check_pattern(block, block->usable, when);
    mark(block, 0);
    atomic_fetch_sub(&live_bytes, block->usable);
}

static void fuzz_free(struct block *block) {
    let_go(block, "free");
    errno = 4711;
    free(block->start);
    if (errno != 4711) VIOLATION("free changed errno to %d", errno);
    block->start = NULL;
}

static void fuzz_malloc(struct worker *worker, struct block *block) {
    size_t size = random_size(worker), alignment = 1, kind = next_random(worker) % 8;
    void *start = NULL;
    if (kind == 0) {
        alignment = (size_t)16 << next_random(worker) % (next_random(worker) % 16 ? 8 : 14);
        if (posix_memalign(&start, alignment, size) != 0) start = NULL;
    } else {
        start = kind <= 2 ? calloc(1, size) : malloc(size);
    }
    if (start == NULL && refused != 0 && (kind == 0 || errno == ENOMEM)) return;
    if (start == NULL) VIOLATION("no block of %zu bytes, errno %d", size, errno);
    if (kind == 1 || kind == 2) check_zero(&(struct block){start, size, size, 0});
    adopt(block, start, size, alignment);
}

static void fuzz_realloc(struct worker *worker, struct block *block) {
    size_t size = random_size(worker) + 1, kind = next_random(worker) % 4, eighth = block->size / 8;
    if (kind < 2) size = block->size + 2 * eighth + 1; /* growth, as a vector does it */
    if (kind == 2) size = block->size - eighth + next_random(worker) % (2 * eighth + 1) + 1; /* a little more or less */
    if (size > (size_t)1 << SIZE_BITS) size = 1;
    struct block old = *block;
    let_go(&old, "realloc");
    unsigned char *start = realloc(old.start, size);
    *block = old;
    if (start == NULL && refused != 0) { /* it is as it was */
        mark(block, 1);
        check_pattern(block, block->usable, "after a refused realloc");
        atomic_fetch_add(&live_bytes, block->usable);
        return;
    }
    if (start == NULL) VIOLATION("realloc to %zu bytes refused", size);
    block->start = start;
    check_pattern(block, old.size < size ? old.size : size, "after realloc");
    adopt(block, start, size, 1);
}

static void swap_with_mailbox(struct worker *worker, struct block *block) {
    size_t i = next_random(worker) % MAILBOXES;
    pthread_mutex_lock(&mailboxes[i].lock);
    struct block received = mailboxes[i].block;
    mailboxes[i].block = *block;
    *block = received;
    pthread_mutex_unlock(&mailboxes[i].lock);
}

static void one_call(struct worker *worker) {
    struct block *block = &worker->blocks[next_random(worker) % worker->slots];
    uint64_t choice = next_random(worker) % 16;
    if (choice < 4) swap_with_mailbox(worker, block);
    else if (block->start == NULL) {
        if (atomic_load(&live_bytes) < live_max) fuzz_malloc(worker, block);
    } else if (choice < 6) fuzz_realloc(worker, block);
    else fuzz_free(block);
    worker->calls++;
}

/* Every other life asks for sizes of one doubling alone, so that each pool gets its share of the time and slabs fill. */
static void choose(struct worker *worker) {
    worker->narrow = next_random(worker) % 2 ? 4 + (unsigned)(next_random(worker) % (NARROW_BITS - 4)) : 0;
    worker->slots = worker->narrow != 0 ? SLOTS : SLOTS_ALL_SIZES;
    while (worker->narrow != 0 && worker->slots << worker->narrow > NARROW_BYTES) worker->slots /= 2;
}

/* A peak of which few blocks stay, freed in any order: memory of slabs goes back in parts. */
static void rise_and_fall(struct worker *worker) {
    size_t step = next_random(worker) | 1, stay = (size_t)8 << next_random(worker) % 8;
    for (size_t i = 0; i < worker->slots && !stop; i++)
        if (worker->blocks[i].start == NULL && atomic_load(&live_bytes) < live_max) fuzz_malloc(worker, &worker->blocks[i]);
    for (size_t i = 0; i < worker->slots && !stop; i++) {
        struct block *block = &worker->blocks[i * step % worker->slots];
        if (block->start != NULL && next_random(worker) % stay != 0) fuzz_free(block);
    }
    worker->calls += worker->slots;
    if (next_random(worker) % 4 == 0) malloc_trim(0);
    usleep(5000); /* for the helper's next round */
}

static void fork_once(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) VIOLATION("a child ended with %d", status);
}

/* Now and then a worker empties its hands, so that slabs and regions become free as a whole. */
static void *live_a_life(void *argument) {
    struct worker *worker = argument;
    choose(worker);
    for (int i = 0; i < LIFE && !stop; i++) {
        if (worker->narrow != 0 && i % (LIFE / 2) == 0) rise_and_fall(worker);
        one_call(worker);
    }
    for (int i = 0; next_random(worker) % 4 == 0 && i < SLOTS; i++)
        if (worker->blocks[i].start) fuzz_free(&worker->blocks[i]);
    if (next_random(worker) % 4 == 0) fork_once();
    return NULL;
}

static void *replace_forever(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < FORKS; i++) fork_once();
    while (!stop) {
        pthread_t thread;
        int failed = pthread_create(&thread, NULL, live_a_life, worker);
        if (failed && refused == 0) VIOLATION("no thread");
        if (!failed) pthread_join(thread, NULL);
    }
    return NULL;
}

/* Turns any knob but those that choose a node or write lines, a thousand times a second: to an end of its range, to its
 * preset or to something between. */
static void turn_knobs(int seconds) {
    for (int turn = 0; turn < 1000 * seconds; turn++, usleep(1000)) {
#ifdef HAK_DIRECT
        static struct worker hand = {.random = 42};
        hak_knob_t knob;
        hak_knob_read((int)(next_random(&hand) % (uint64_t)hak_knob_count()), &knob);
        if (strncmp(knob.name, "placement", 9) == 0 || strcmp(knob.name, "ace_log_level") == 0) continue;
        int64_t part = (knob.maximum - knob.minimum) >> next_random(&hand) % 32;
        int64_t values[] = {knob.minimum, knob.maximum, knob.preset, knob.minimum + part};
        hak_knob_set(knob.name, values[next_random(&hand) % 4]);
#endif
    }
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5 || atoi(argv[2]) < 1 || atoi(argv[2]) > THREADS_MAX) {
        dprintf(2, "usage: fuzz SECONDS THREADS SEED [REFUSED] (1 to %d threads)\n", THREADS_MAX);
        return 2;
    }
    int threads = atoi(argv[2]);
    for (int i = 0; i < MAILBOXES; i++) pthread_mutex_init(&mailboxes[i].lock, NULL);
    for (int i = 0; i < threads; i++) {
        workers[i].random = (strtoull(argv[3], NULL, 10) * THREADS_MAX + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        pthread_create(&workers[i].thread, NULL, replace_forever, &workers[i]);
    }
    refused = argc > 4 ? (unsigned)atoi(argv[4]) : 0;
    unsigned long long calls = 0;
    if (getenv("FUZZ_TURNS") != NULL) turn_knobs(atoi(argv[1]));
    else sleep((unsigned)atoi(argv[1]));
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < threads; i++) {
        for (int j = 0; j < SLOTS; j++)
            if (workers[i].blocks[j].start) fuzz_free(&workers[i].blocks[j]);
        calls += workers[i].calls;
    }
    for (int i = 0; i < MAILBOXES; i++)
        if (mailboxes[i].block.start) fuzz_free(&mailboxes[i].block);
    if (live_bytes != 0) VIOLATION("%zu bytes left over", (size_t)live_bytes);
    printf("seed %s: %llu calls, %llu of the kernel's refused, %zu MiB live at most, no violation\n", argv[3], calls,
           refusals, (size_t)live_peak >> 20);
    return 0;
}
