/* bench.h: what the files of the bench share: options, lanes (one thread's share of a run), the table of workloads; and
 * what each file offers to those above it, the lowest file first.
 *
 * One executable measures every allocator. A *backend* says who answers the calls: `malloc` is whatever LD_PRELOAD put
 * there, `floor` a bare intrusive list inside this executable, `direct` the inlined fast path of hakmem.h. Each
 * workload is compiled once for each backend, so no call goes through a function pointer.
 *
 * The bench's own arrays are mapped, never allocated: only workloads call malloc. */
#ifndef HAK_BENCH_H
#define HAK_BENCH_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define UNSET UINT64_MAX
#define INLINE static inline __attribute__((always_inline))

enum {
    EXIT_USAGE = 2,      /* bad argument or unreadable trace */
    EXIT_NO_WORK = 3,    /* faster than an allocator can be: the work was optimised away */
    EXIT_WRONG_DATA = 4, /* the allocator under test broke a promise */
    CACHE_LINE = 64,
    MAX_THREADS = 1024,
    MAX_CHUNKS = 4096,
    MAX_MARKS = 65536, /* phases of one run */
    RING_BLOCKS = 4096,
    IDLE_SAMPLES = 100,
};

enum backend { ON_MALLOC, ON_FLOOR, ON_DIRECT, BACKENDS };

struct options {
    const struct workload *workload;
    enum backend backend;
    size_t size;         /* bytes; the largest block where sizes vary */
    uint64_t threads;    /* lanes */
    uint64_t slots;      /* live blocks of a lane */
    uint64_t iterations; /* over all timed chunks and lanes, before scale */
    uint64_t warmup;     /* iterations before the first chunk; UNSET: as many as a chunk has */
    uint64_t chunks;
    uint64_t seed;
    uint64_t phase_pairs; /* length of a phase, over all lanes */
    uint64_t phase_ms;    /* length of a phase in time instead, where not 0 */
    uint64_t peak_mb;     /* idle_peak: live memory at the peak */
    uint64_t idle_ms;     /* idle_peak: how long the freed process is watched */
    double scale;         /* factor on iterations */
    double slowdown;      /* percent of extra work, done but not counted */
    int64_t cpu;          /* pinned to this one; -1: not pinned */
    const char *toggle;   /* NAME=A,B: a knob of the library under test that changes from chunk to chunk */
    const char *replay;   /* a recorded trace, instead of a workload */
    bool partial;         /* replay what is readable of a damaged trace */
    bool stream;          /* one line of JSON on stderr after each chunk */
};

/* What a body works on; workloads with phases change it from one to the next. */
struct shape {
    size_t size;     /* bytes, the largest */
    size_t smallest; /* bytes */
    uint64_t slots;  /* blocks */
};

/* One producer, one consumer; each side keeps its own copy of the other's index and publishes its own in batches. */
struct ring {
    _Alignas(CACHE_LINE) _Atomic uint64_t produced;
    _Alignas(CACHE_LINE) _Atomic uint64_t consumed;
    _Alignas(CACHE_LINE) void *block[RING_BLOCKS]; /* NULL ends a run */
};

struct mark { /* one phase of a run */
    uint32_t phase;
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    uint64_t elapsed_ns, cpu_ns;
    _Atomic uint64_t pairs;
};

struct lane {
    _Alignas(CACHE_LINE) struct rig *rig;
    uint64_t id;
    struct shape shape;
    void **block;    /* [slots] live blocks, NULL where free */
    uint32_t *bytes; /* [slots] their sizes */
    uint64_t random; /* state of the generator */
    uint64_t turn;   /* larson: stripe in use; phases: next mark */
    uint64_t live_peak_bytes;
    uint64_t untimed_ns, untimed_cpu_ns, untimed_faults; /* set-up inside a body, so far; if ALONE */
    uint64_t iterations;                                 /* to do in this chunk */
    uint64_t ops;                                        /* done in this chunk */
    pthread_t thread;
};

struct rig { /* one run: its lanes and what they share */
    const struct options *options;
    struct lane *lane;
    void **block;    /* every lane's slots, in a row */
    uint32_t *bytes; /* same */
    uint64_t slots;  /* all lanes together */
    uint64_t apart;  /* from one lane's first slot to the next lane's */
    uint32_t *order; /* a fixed permutation of one lane's slots */
    struct ring *ring;
    struct mark *mark;
    uint64_t peak_rss_bytes; /* idle_peak: when everything was live, the last time */
    uint64_t drained_bytes;  /* live at the end */
    uint64_t checksum;       /* of what was live at the end */
    pthread_barrier_t start, end, round;
    void (*rest)(void); /* called by each lane before a chunk if a knob is toggled: the lane takes the new value up */
    bool stop;
};

struct result {             /* one run; times per operation are those of counted operations */
    uint64_t counted, done; /* iterations of a lane in a chunk: as reported; as done, slow-down included */
    uint64_t ops, warmup_ops, elapsed_ns, cpu_ns, checksum;
    uint64_t rss_start_bytes, rss_end_bytes, peak_rss_bytes, live_peak_bytes, thp_bytes;
    long minor_faults, major_faults, context_switches;
    double chunk_ns[MAX_CHUNKS], chunk_cpu_ns[MAX_CHUNKS];
    double chunk_side[MAX_CHUNKS]; /* value of the toggled knob: 0 is A, 1 is B */
    uint64_t ace_firings;          /* steps of ACE's fast loop during the chunks */
    const struct mark *mark;       /* [marks] phases of the timed chunks */
    uint64_t marks;
    uint64_t peak_live_rss_bytes; /* idle_peak: everything alive */
    unsigned idle_samples;
    double idle_time_ms[IDLE_SAMPLES + 1]; /* since the last free */
    uint64_t idle_rss_bytes[IDLE_SAMPLES + 1];
};

typedef uint64_t (*body_fn)(struct lane *, uint64_t iterations); /* returns operations done */

enum workload_flag {
    THREADED = 1,   /* lanes are threads even when there is only one */
    PAIRED = 2,     /* lanes work in pairs, so their number is even */
    REMOTE = 4,     /* blocks drift to other threads for good: the floor, which has no way back, refuses */
    PHASED = 8,     /* reports marks */
    SHUFFLED = 16,  /* uses the permutation */
    IDLE = 32,      /* watched while idle, after the last chunk */
    TOGETHER = 64,  /* lanes do each iteration together instead of sharing them out */
    DOUBLING = 128, /* sizes span whole doublings of the smallest, at least one */
    ALONE = 256,    /* stops the clocks in between, so it has one lane */
};

struct workload {
    const char *name, *stresses, *unit;
    struct shape shape;  /* defaults; smallest is also the least --size */
    uint64_t threads;    /* default */
    uint64_t iterations; /* default */
    uint64_t round;      /* a lane's iterations are a multiple of it; 0: any number */
    unsigned flags;
    body_fn body[BACKENDS];
};

/* machine.c */
void die(int status, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void *map_zeroed(size_t size);                          /* resident; dies when there is no memory */
uint64_t proc_bytes(const char *path, const char *key); /* of a "Key:  123 kB" line; 0 where the kernel does not say */
uint64_t resident_bytes(void);
void reset_peak(void); /* restarts the high-water mark of memory here, so that setting up does not count */

/* peers.c */
extern const char *const backend_names[BACKENDS];
bool backend_usable(enum backend backend, const struct workload *workload);
const char *backend_origin(enum backend backend); /* path of the object that answers malloc */
void *backend_function(const char *name);         /* of that object; NULL: it has none of this name */
void *floor_malloc(size_t size);
void floor_free(void *block, size_t size);
void *floor_realloc(void *block, size_t old_size, size_t size);
void *floor_calloc(size_t size);

/* workloads.c */
extern const struct workload workloads[];
extern const size_t workload_count;
extern const char *const phase_names[];
uint64_t workload_slots(const struct options *options); /* slots to map for a lane */
void workload_drain(struct rig *rig);                   /* frees and checks what is still live */

/* replay.c */
struct trace_facts {
    uint64_t events, slots, threads, live_peak_bytes;
    uint64_t lost;          /* not recorded: the limit was reached, or the disk full */
    uint64_t foreign_frees; /* of blocks that the trace did not see taken */
    uint64_t unreadable;    /* records left out of a partial replay */
};
extern const struct workload replay_workload;
const struct trace_facts *trace_load(const char *path, bool partial); /* dies with one line on damage */

/* run.c */
const struct result *run(const struct options *options);

INLINE uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One step of waiting for another lane: spins, and now and then lets it have the core. */
INLINE void relax(unsigned *spins)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
    if (++*spins % 2048 == 0) sched_yield();
}

#endif
