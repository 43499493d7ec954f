/* workloads.c: what threads do to an allocator, programs with phases, and the table of all workloads. */
#include "bodies.h"
#include "pools.h"

/* --- threads ------------------------------------------------------------------------------------------------------ */

/* Larson and Krishnan (ISMM 1998), closed: threads stay the same. Each lane replaces random slots of its stripe; after
 * a round the stripes move on by one lane, so blocks die in another thread than the one that took them. */
BODY larson(enum backend on, struct lane *lane, uint64_t n)
{
    struct rig *rig = lane->rig;
    struct shape shape = lane->shape;
    uint64_t random = lane->random, threads = rig->options->threads, round = rig->options->workload->round;
    for (uint64_t done = 0; done < n; done += round) {
        size_t base = (lane->id + lane->turn++) % threads * rig->apart;
        for (uint64_t k = 0; k < round; k++) {
            uint64_t bits = draw(&random);
            size_t slot = base + below((uint32_t)bits, shape.slots);
            uint32_t size = uniform_size((uint32_t)(bits >> 32), shape.smallest, shape.size);
            if (rig->block[slot]) give(on, rig->block[slot], rig->bytes[slot]);
            touch(rig->block[slot] = take(on, size), k);
            rig->bytes[slot] = size;
        }
        if (threads > 1) pthread_barrier_wait(&rig->round);
    }
    lane->random = random;
    return n;
}

enum { PUBLISH = 64 }; /* blocks handed over at a time */

/* Appends one block, waiting while the ring is full, and returns the new index; `consumed` is the producer's copy of
 * the other side's. */
INLINE uint64_t ring_push(struct ring *ring, uint64_t at, uint64_t *consumed, void *block)
{
    unsigned spins = 0;
    while (at - *consumed >= RING_BLOCKS) {
        *consumed = atomic_load_explicit(&ring->consumed, memory_order_acquire);
        if (at - *consumed >= RING_BLOCKS) relax(&spins);
    }
    ring->block[at++ % RING_BLOCKS] = block;
    if (at % PUBLISH == 0 || !block) atomic_store_explicit(&ring->produced, at, memory_order_release);
    return at;
}

INLINE uint64_t produce(enum backend on, struct lane *lane, uint64_t n)
{
    struct ring *ring = &lane->rig->ring[lane->id / 2];
    struct shape shape = lane->shape;
    uint64_t random = lane->random, at = atomic_load_explicit(&ring->produced, memory_order_relaxed);
    uint64_t consumed = atomic_load_explicit(&ring->consumed, memory_order_acquire);
    for (uint64_t k = 0; k < n; k++) {
        void *block = take(on, uniform_size((uint32_t)(draw(&random) >> 32), shape.smallest, shape.size));
        touch(block, k);
        at = ring_push(ring, at, &consumed, block);
    }
    atomic_store_explicit(&ring->produced, at, memory_order_release);
    lane->random = random;
    return n;
}

INLINE void produce_end(struct lane *lane)
{
    struct ring *ring = &lane->rig->ring[lane->id / 2];
    uint64_t consumed = 0;
    ring_push(ring, atomic_load_explicit(&ring->produced, memory_order_relaxed), &consumed, NULL);
}

/* Frees what comes until the NULL that ends a run; the producer counts the pairs. */
INLINE void consume(enum backend on, struct lane *lane)
{
    struct ring *ring = &lane->rig->ring[lane->id / 2];
    uint64_t at = atomic_load_explicit(&ring->consumed, memory_order_relaxed), produced = at;
    unsigned spins = 0;
    for (void *block;; give(on, block, 0)) {
        while (at == produced) {
            produced = atomic_load_explicit(&ring->produced, memory_order_acquire);
            if (at == produced) relax(&spins);
        }
        block = ring->block[at++ % RING_BLOCKS];
        if (at % PUBLISH == 0 || !block) atomic_store_explicit(&ring->consumed, at, memory_order_release);
        if (!block) return;
    }
}

BODY prodcons(enum backend on, struct lane *lane, uint64_t n)
{
    if (lane->id % 2) {
        consume(on, lane);
        return 0;
    }
    produce(on, lane, n);
    produce_end(lane);
    return n;
}

/* A burst takes all slots and gives them back, oldest first. */
BODY bursts(enum backend on, struct lane *lane, uint64_t n) { return fifo(on, lane, n) / 2; }

/* --- phases: one program, several habits -------------------------------------------------------------------------- */

enum { PHASE_BURSTS, PHASE_PRODCONS, PHASE_CHURN, PHASE_LARGE, PHASES };
enum { SLICE = 4096 }; /* pairs between two looks at the clock */
enum { PHASE_FLAGS = THREADED | PAIRED | REMOTE | PHASED | TOGETHER };

const char *const phase_names[PHASES] = {"bursts", "prodcons", "churn", "large"};

/* Bursts and prodcons use one size, the workload's own, so they contend for one setting of one class. */
static struct shape phase_shape(const struct options *options, unsigned phase)
{
    if (phase == PHASE_CHURN) return (struct shape){.size = 1024, .smallest = 16, .slots = 400};
    if (phase == PHASE_LARGE) return (struct shape){.size = 64 << 10, .smallest = 32 << 10, .slots = 16};
    return (struct shape){.size = options->size, .smallest = options->size, .slots = options->slots};
}

BODY phase_slice(enum backend on, struct lane *lane, unsigned phase)
{
    switch (phase) {
    case PHASE_BURSTS:
        return bursts(on, lane, SLICE / lane->shape.slots + 1);
    case PHASE_PRODCONS:
        return produce(on, lane, SLICE);
    case PHASE_CHURN:
        return random_mixed(on, lane, SLICE);
    default:
        return varying(on, lane, SLICE);
    }
}

/* Ends a phase: each lane frees what it still has, so that the next phase starts with nothing. */
INLINE void phase_leave(enum backend on, struct lane *lane, unsigned phase)
{
    if (phase == PHASE_PRODCONS) produce_end(lane);
    if (phase < PHASE_CHURN) return;
    for (size_t i = 0; i < lane->shape.slots; i++) drop(on, lane, i);
    forget(lane, 0, 1);
}

BODY phase_run(enum backend on, struct lane *lane, unsigned phase)
{
    const struct options *options = lane->rig->options;
    uint64_t pairs = 0, workers = phase == PHASE_PRODCONS ? options->threads / 2 : options->threads;
    uint64_t limit = options->phase_ms ? UINT64_MAX : options->phase_pairs / workers;
    uint64_t until = options->phase_ms ? clock_ns(CLOCK_MONOTONIC) + options->phase_ms * 1000000 : UINT64_MAX;
    lane->shape = phase_shape(options, phase);
    if (phase == PHASE_PRODCONS && lane->id % 2) {
        consume(on, lane);
        return 0;
    }
    do pairs += phase_slice(on, lane, phase);
    while (pairs < limit && clock_ns(CLOCK_MONOTONIC) < until);
    phase_leave(on, lane, phase);
    return pairs;
}

INLINE uint64_t phase_cycle(enum backend on, struct lane *lane, unsigned phases)
{
    struct rig *rig = lane->rig;
    uint64_t pairs = 0;
    for (unsigned phase = 0; phase < phases; phase++) {
        if (lane->turn == MAX_MARKS)
            die(EXIT_USAGE, "more than %d phases in one run: use fewer --iterations or longer phases", MAX_MARKS);
        struct mark *mark = &rig->mark[lane->turn++];
        pthread_barrier_wait(&rig->round);
        uint64_t wall = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        uint64_t done = phase_run(on, lane, phase);
        atomic_fetch_add_explicit(&mark->pairs, done, memory_order_relaxed);
        pairs += done;
        pthread_barrier_wait(&rig->round);
        if (lane->id == 0) {
            mark->phase = phase;
            mark->start_ns = wall;
            mark->elapsed_ns = clock_ns(CLOCK_MONOTONIC) - wall;
            mark->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        }
    }
    return pairs;
}

BODY phases(enum backend on, struct lane *lane, uint64_t n)
{
    uint64_t pairs = 0;
    while (n-- > 0) pairs += phase_cycle(on, lane, PHASE_CHURN);
    return pairs;
}

BODY phases4(enum backend on, struct lane *lane, uint64_t n)
{
    uint64_t pairs = 0;
    while (n-- > 0) pairs += phase_cycle(on, lane, PHASES);
    return pairs;
}

/* --- idle --------------------------------------------------------------------------------------------------------- */

/* A peak of memory, then nothing: what the process still holds is read by run.c. */
BODY idle_peak(enum backend on, struct lane *lane, uint64_t n)
{
    void **block = lane->block;
    size_t size = lane->shape.size, slots = lane->shape.slots;
    for (uint64_t k = 0; k < n; k++) {
        for (size_t i = 0; i < slots; i++) touch_pages(block[i] = take(on, size), size, k);
        if (lane->id == 0) lane->rig->peak_rss_bytes = resident_bytes();
        for (size_t i = 0; i < slots; i++) give(on, block[i], size);
    }
    forget(lane, 0, 1);
    return n * slots;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* X(name, body, unit, size, smallest, slots, threads, iterations, round, flags, what it stresses). Sizes in bytes;
 * slots a thread; iterations over all chunks and threads; round: pairs a thread does between two barriers. */
/* clang-format off */
#define WORKLOADS(X) \
    X(lifo, lifo, "call", 32, 1, 100, 1, 125000, 0, 0, "last taken, first given back: the cache's best case") \
    X(fifo, fifo, "call", 32, 1, 100, 1, 125000, 0, 0, "first taken, first given back") \
    X(random, shuffled, "call", 32, 1, 100, 1, 125000, 0, SHUFFLED, "given back in a random order") \
    X(interleaved, interleaved, "call", 32, 1, 100, 1, 125000, 0, 0, "one block at a time: store forwarding") \
    X(longlived, longlived, "call", 32, 1, 100, 1, 250000, 0, 0, "half held for good, half churned between them") \
    X(random_mixed, random_mixed, "pair", 1024, 16, 400, 1, 10000000, 0, 0, "sizes and order at random, little live") \
    X(large_ws, random_mixed, "pair", 1024, 16, 200000, 1, 4000000, 0, 0, "the same with 100 MB live") \
    X(frag, frag, "call", 4096, 16, 2000, 1, 40, 0, DOUBLING, "holes refilled with other sizes") \
    X(frag_grow, frag_grow, "call", 4096, 16, 2000, 1, 10, 0, DOUBLING, "the same while the heap grows") \
    X(drift, drift, "pair", 64 << 10, 16, 1 << 18, 1, 5, 0, 0, "a cache whose values grow: old sizes die out slowly") \
    X(rebuild, rebuild, "pair", 48, 8, 200000, 1, 50, 0, SHUFFLED, "a list built, walked, torn down in random order") \
    X(json, oldest, "pair", 64 << 10, 1, 16, 1, 1000000, 0, 0, "64 KB documents, oldest replaced") \
    X(mir, oldest, "pair", 256 << 10, 1, 16, 1, 250000, 0, 0, "256 KB intermediate code") \
    X(vm, oldest, "pair", 2 << 20, 1, 16, 1, 10000, 0, 0, "2 MB machine images") \
    X(json_var, varying, "pair", 64 << 10, 2, 16, 1, 300000, 0, 0, "0.5 to 1.5 times 64 KB") \
    X(mir_var, varying, "pair", 256 << 10, 2, 16, 1, 50000, 0, 0, "0.5 to 1.5 times 256 KB") \
    X(vm_var, varying, "pair", 2 << 20, 2, 16, 1, 5000, 0, 0, "0.5 to 1.5 times 2 MB") \
    X(mixed, mixed, "pair", 1 << 20, 16, 64, 1, 400000, 0, DOUBLING, "every size from 16 bytes to 1 MB alike") \
    X(realloc, growing, "grow", 8 << 20, 16, 2, 1, 50, 0, 0, "two vectors double in turn to 8 MB") \
    X(realloc1, growing, "grow", 8 << 20, 16, 1, 1, 200, 0, 0, "one vector doubles alone to 8 MB") \
    X(calloc, zeroed, "pair", 256 << 10, 4 << 10, 16, 1, 50000, 0, DOUBLING, "zeroed blocks, 4 to 256 KB") \
    X(larson, larson, "pair", 1024, 16, 1000, 4, 8000000, 50000, THREADED, "a server's threads, 2 % remote frees") \
    X(larson_remote, larson, "pair", 1024, 16, 10000, 4, 4000000, 20000, THREADED, "the same, 43 % remote") \
    X(prodcons, prodcons, "pair", 512, 16, 1, 2, 4000000, 0, THREADED | PAIRED | REMOTE, "one thread takes, the other frees") \
    X(bursts, bursts, "pair", 64, 1, 400, 4, 40000, 0, THREADED, "400 objects at a time: caches overflow") \
    X(phases, phases, "pair", 64, 1, 400, 4, 10, 0, PHASE_FLAGS, "bursts, then prodcons, and again") \
    X(phases4, phases4, "pair", 64, 1, 400, 4, 5, 0, PHASE_FLAGS, "bursts, prodcons, churn, large") \
    X(idle_peak, idle_peak, "pair", 200, 1, 1, 1, 5, 0, IDLE, "memory given back after a peak")
/* clang-format on */

#ifdef HAK_BENCH_DIRECT
#define DIRECT_INSTANCE(name, body)                                                                                    \
    static uint64_t name##_direct(struct lane *lane, uint64_t n) { return body(ON_DIRECT, lane, n); }
#define DIRECT_BODY(name) name##_direct
#else
#define DIRECT_INSTANCE(name, body)
#define DIRECT_BODY(name) NULL
#endif

#define INSTANCES(name, body, ...)                                                                                     \
    static uint64_t name##_malloc(struct lane *lane, uint64_t n) { return body(ON_MALLOC, lane, n); }                  \
    static uint64_t name##_floor(struct lane *lane, uint64_t n) { return body(ON_FLOOR, lane, n); }                    \
    DIRECT_INSTANCE(name, body)
WORKLOADS(INSTANCES)

#define ROW(name, body, unit, size, smallest, slots, threads, iterations, round, flags, stresses)                      \
    {#name,                                                                                                            \
     stresses,                                                                                                         \
     unit,                                                                                                             \
     {size, smallest, slots},                                                                                          \
     threads,                                                                                                          \
     iterations,                                                                                                       \
     round,                                                                                                            \
     flags,                                                                                                            \
     {name##_malloc, name##_floor, DIRECT_BODY(name)}},
#ifdef HAK_BENCH_DIRECT
#define STACK_ROW(name, body, unit, size, smallest, slots, threads, iterations, round, flags, stresses)                \
    {#name, stresses, unit, {size, smallest, slots}, threads, iterations, round, flags, {NULL, NULL, name##_direct}},
#else
#define STACK_ROW(...)
#endif
const struct workload workloads[] = {WORKLOADS(ROW) POOL_WORKLOADS(ROW) STACK_WORKLOADS(STACK_ROW)};
const size_t workload_count = sizeof workloads / sizeof *workloads;

/* --- what a run needs to know about them -------------------------------------------------------------------------- */

uint64_t workload_slots(const struct options *options)
{
    const struct workload *workload = options->workload;
    if (workload->body[ON_MALLOC] == frag_grow_malloc) return options->slots * FRAG_ROUNDS;
    if (workload->flags & PHASED) {
        uint64_t churn = phase_shape(options, PHASE_CHURN).slots;
        return options->slots > churn ? options->slots : churn;
    }
    return options->slots;
}

INLINE void drain(enum backend on, struct rig *rig)
{
    for (size_t i = 0; i < rig->slots; i++) {
        if (!rig->block[i]) continue;
        size_t size = rig->bytes[i] ? rig->bytes[i] : rig->options->size;
        rig->drained_bytes += size;
        rig->checksum = rig->checksum * 31 + size + *(unsigned char *)rig->block[i];
        give(on, rig->block[i], size);
    }
}

void workload_drain(struct rig *rig)
{
    switch (rig->options->backend) {
    case ON_FLOOR:
        return drain(ON_FLOOR, rig);
    case ON_DIRECT:
        return drain(ON_DIRECT, rig);
    default:
        return drain(ON_MALLOC, rig);
    }
}
