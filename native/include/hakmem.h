/* hakmem.h: the public interface of HAKMEM, a memory allocator that learns.
 *
 * A program that only wants a faster malloc needs none of this: preload libhakmem.so. The rest is for programs and
 * notebooks that link it: the hak_ family, its knobs and counters, ACE (the learner), pools of one size, placement.
 *
 * What stands between the two cdef markers is plain C declarations, read by cffi as they are, so every declaration of
 * the interface exists once. Sizes are bytes unless a name says _pages, _blocks, _ns, _ops. A call that can fail
 * returns NULL or a negative error code, and sets errno where POSIX says so. Corruption of the heap ends the program
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

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* The malloc family. Alignment 16 (max_align_t); sizes above PTRDIFF_MAX, above 128 GiB, and any that the kernel has
 * no address space for, give NULL and ENOMEM. hak_malloc(0) returns a unique block. hak_free keeps errno and is no
 * cancellation point. */
void *hak_malloc(size_t size);
void hak_free(void *block);
void *hak_calloc(size_t count, size_t size);
void *hak_realloc(void *block, size_t size); /* size 0: frees the block and returns NULL; NULL: as hak_malloc */
void *hak_aligned_alloc(size_t alignment, size_t size); /* EINVAL unless a power of two */
/* 0, EINVAL unless a power of two and a multiple of a pointer's size, or ENOMEM; then *block is untouched. */
int hak_posix_memalign(void **block, size_t alignment, size_t size);
size_t hak_usable_size(void *block); /* bytes that belong to the caller, stable while the block lives; NULL: 0 */

/* Returns to the operating system what can be returned now: this thread's cache, the depot, idle slabs and runs.
 * Other threads keep short runs and a block of each class, and all they have where no helper runs. Result: bytes that
 * the kernel was told to take, resident or not. */
size_t hak_purge(void);

/* For a thread that is about to rest: what it caches goes where other threads can get it. */
void hak_thread_idle(void);

/* --- build -------------------------------------------------------------------------------------------------------- */

const char *hak_build_variant(void); /* "release", "pgo", "checked", ... as the builder named it */
const char *hak_build_hash(void);    /* hash of sources, flags and compiler; "unknown" outside the builder */

/* --- knobs: every tunable, one row each in src/knobs.c ------------------------------------------------------------ */

typedef struct hak_knob_t {
    const char *name; /* "magazine_blocks"; the environment variable is HAKMEM_ and the name in capitals */
    const char *unit; /* "bytes", "blocks", "ms", "bool", ... */
    const char *why;  /* one line: what it trades against what */
    int64_t value;    /* in force now */
    int64_t preset;   /* default, profile and environment applied, before any hak_knob_set */
    int64_t minimum;  /* inclusive */
    int64_t maximum;  /* inclusive */
    int learnable;    /* 1: ACE has a learner for it */
    int at_start;     /* 1: read when a process starts, fixed from then on */
} hak_knob_t;

int hak_knob_count(void);
int hak_knob_read(int row, hak_knob_t *knob); /* 0, or -1: no such row */
/* 0, -1: no such knob, -2: no such value, -3: read only when a process starts. In force at the next slow path. */
int hak_knob_set(const char *name, int64_t value);
const char *hak_profile(void); /* the profile in force: "default", "lean", "hardened", ... */

/* --- statistics: every counter, one row each in src/stats.c ------------------------------------------------------- */

typedef struct hak_stat_t {
    const char *name; /* "refills" */
    const char *unit; /* "calls", "bytes", "blocks", ... */
    const char *meaning;
    uint64_t value; /* summed over all heaps when read */
} hak_stat_t;

int hak_stat_count(void);
int hak_stat_read(hak_stat_t *rows, int capacity); /* fills up to capacity rows, returns the number filled */

/* --- the heap drawn: regions, slabs and runs as they are now, for the anatomy notebook ---------------------------- */

enum hak_span_kind {
    HAK_SPAN_FREE,   /* may hold pages */
    HAK_SPAN_SLAB,   /* equal blocks */
    HAK_SPAN_RUN,    /* one mid or large block */
    HAK_SPAN_WINDOW, /* a large block, with address space to grow in place */
    HAK_SPAN_PURGED, /* free, without pages */
};

typedef struct hak_span_t {
    uint64_t address;    /* first byte */
    uint64_t size;       /* bytes */
    uint64_t superslab;  /* address of the region it was carved from */
    uint32_t kind;       /* enum hak_span_kind */
    uint32_t block_size; /* slab: bytes a block; run: bytes asked for, or what a short one serves; 4 GiB - 1 at most */
    uint32_t blocks;     /* slab: blocks it can hold */
    uint32_t used;   /* slab: blocks handed out of it, cached ones included; run: 1 with a caller, in hand or depot */
    uint32_t carved; /* slab: blocks carved so far */
    uint32_t heap;   /* number of the heap that carves it, 0 none */
} hak_span_t;

typedef struct hak_magazine_t {
    uint32_t heap; /* number of the heap */
    uint32_t block_size;
    uint32_t loaded; /* blocks in the magazine that malloc and free use */
    uint32_t spare;  /* blocks in the one behind it */
    uint32_t capacity;
    uint32_t depot; /* full magazines in the shared depot, same for every heap */
} hak_magazine_t;

size_t hak_heap_walk(hak_span_t *spans, size_t capacity); /* returns how many there are */
size_t hak_magazine_walk(hak_magazine_t *magazines,
                         size_t capacity); /* the calling thread's exact, others' approximate */

/* --- call sites --------------------------------------------------------------------------------------------------- */

/* Rules for allocations above 1 KiB by the address they return to; in force while the knob site_rules is 1. They do not
 * apply to blocks that their alignment keeps out of a slab. An allocation made through another function has that
 * function's site, shared with all that come through it: an aligned allocation, for example, or operator new where the
 * linker binds it at once (-z now). */
enum {
    HAK_SITE_NONE = 0,  /* by size */
    HAK_SITE_RUN = 1,   /* a run of its own, whatever the size, apart from small blocks */
    HAK_SITE_FRESH = 2, /* a run from the arena, not from this thread's cache: for long-lived blocks */
    HAK_SITE_GROWTH = 3 /* address space to grow in place; learned for sites whose blocks grow */
};

typedef struct hak_site_t {
    uint64_t address;     /* the return address */
    int32_t rule;         /* HAK_SITE_... */
    int32_t by_hand;      /* 1: set by hak_site_set, not learned */
    uint64_t allocations; /* seen while the rules were on */
    uint64_t growths;     /* blocks that moved to where they grow in place */
} hak_site_t;

int hak_site_set(uint64_t address, int rule);            /* 0, or -1: no such rule, address 0, or row taken by hand */
size_t hak_site_read(hak_site_t *rows, size_t capacity); /* returns how many there are */

/* --- placement ---------------------------------------------------------------------------------------------------- */

/* Which NUMA node serves memory that is mapped from now on: chunks of pools, and the heap's address space, which is
 * mapped in steps as it is needed. The knobs `placement` and `placement_node` set the policy of the process. The node
 * is chosen when a page is first touched, so memory that is already resident stays where it is. Where there is only one
 * node, or the kernel refuses (no NUMA support, a sandbox), memory is served as if no policy had been chosen. */
enum {
    HAK_PLACE_DEFAULT = 0,    /* no request: the policy of the thread that touches first */
    HAK_PLACE_LOCAL = 1,      /* the node of the thread that touches first, whatever its own policy */
    HAK_PLACE_INTERLEAVE = 2, /* page by page over all nodes this process may use */
    HAK_PLACE_BIND = 3        /* one node, and no other */
};

int hak_node_count(void);   /* nodes this process may use; 1 where the kernel does not say */
int hak_node_current(void); /* node of the processor this thread runs on; 0 where the kernel does not say */

/* Applies a policy to whole pages, or to what the calling thread maps from now on. `node` matters for BIND only.
 * 0, or a negative errno: -EINVAL (no such policy, node not ours, address NULL or not page aligned), -EFAULT (not
 * mapped), -ENOSYS, -EPERM. */
int hak_place(void *pages, size_t size, int policy, int node);
int hak_place_thread(int policy, int node);

/* The policy that governs the page of `address` (NULL: the calling thread), and for BIND its lowest node, else 0.
 * 0, or a negative errno: as above, and -EINVAL where the policy is none of these four. */
int hak_place_read(const void *address, int *policy, int *node);

/* --- stack pool --------------------------------------------------------------------------------------------------- */

/* A pool of objects of one size. Freed objects are kept on a stack and handed out again last in, first out; the pool
 * grows by whole chunks, and no live object ever moves. Contents of a fresh object are undefined.
 *
 * hak_pool_new makes the owner's variant: only the thread that made it may use it (any thread may destroy it), and a
 * hit is inlined into the caller. hak_pool_new_shared makes one that any number of threads may use at once. Every call
 * reports misuse by its code, but foreign pointers and double deallocation are noticed by the checked build only. A new
 * thread that reuses the place of an owner that has ended is taken for the owner. A destroyed pool is recognised until
 * 1024 more have been destroyed. The handle itself is not checked: it must be a pool's, and not NULL. */
typedef struct hak_pool hak_pool_t;

enum {
    HAK_POOL_OK = 0,
    HAK_POOL_SIZE = -1,      /* size 0 */
    HAK_POOL_ALIGNMENT = -2, /* not a power of two */
    HAK_POOL_MEMORY = -3,    /* more than this machine has, or the system gives no more */
    HAK_POOL_NULL = -4,      /* no object given */
    HAK_POOL_DESTROYED = -5, /* the pool was destroyed */
    HAK_POOL_THREAD = -6,    /* the owner's variant, used by another thread */
    HAK_POOL_FOREIGN = -7,   /* not an object of this pool (checked build) */
    HAK_POOL_DOUBLE = -8     /* not live: deallocated twice (checked build) */
};

typedef struct hak_pool_stats_t {
    uint64_t allocations; /* hits + misses */
    uint64_t hits;        /* served by an object that was freed, or made ready by preallocation */
    uint64_t misses;      /* served by a new object of a pool that had to grow; shared: in whole batches */
    uint64_t live;        /* objects handed out now */
    uint64_t peak;        /* most objects handed out at once; shared: plus those that threads keep at hand */
    uint64_t capacity;    /* objects that the pool's chunks hold */
    uint64_t bytes_held;  /* address space of chunks and lanes; what was never touched is not resident */
    double hit_rate;      /* hits / allocations; 0 before the first */
} hak_pool_stats_t;

hak_pool_t *hak_pool_new(size_t size, size_t alignment); /* NULL: see hak_pool_error */
hak_pool_t *hak_pool_new_shared(size_t size, size_t alignment);
hak_pool_t *hak_pool_with_capacity(size_t size, size_t alignment, size_t objects); /* new, then preallocate */
void *hak_pool_allocate(hak_pool_t *pool);                                         /* NULL: see hak_pool_error */
int hak_pool_deallocate(hak_pool_t *pool, void *object);
int hak_pool_preallocate(hak_pool_t *pool, size_t objects);    /* maps and touches so many more in advance */
int hak_pool_stats(hak_pool_t *pool, hak_pool_stats_t *stats); /* owner's: takes time for each free since the last */
/* Returns the chunks without a live object to the system. In a shared pool, chunks with objects that other living
 * threads keep at hand stay. */
int hak_pool_shrink(hak_pool_t *pool);
int hak_pool_destroy(hak_pool_t *pool); /* and all its objects; no other thread may be inside */
int hak_pool_error(void);               /* code of the calling thread's last failed call */
const char *hak_pool_message(int code); /* one line: what happened and how to mend it */

/* --- policies ----------------------------------------------------------------------------------------------------- */

/* Bandits: arms and arithmetic only. No clock, no allocation, no libm. A bandit is a plain struct that may be copied,
 * kept anywhere and used by one thread at a time. All its randomness comes from its seed. A larger reward is better;
 * UCB1, UCB1-tuned, KL-UCB, Exp3 and Thompson (Bernoulli) are made for rewards within [0, 1]. */

enum {
    HAK_BANDIT_ARMS = 16,      /* most arms of one bandit */
    HAK_BANDIT_WINDOW = 4096,  /* most plays a sliding window remembers */
    HAK_BANDIT_REGIMES = 4,    /* most earlier regimes that can be returned to */
    HAK_BANDIT_PARAMETERS = 16 /* room for the parameters of src/ace/policy.c */
};

typedef struct hak_policy_t {
    const char *name; /* "ucb1" */
    const char *what; /* one line: rule and source */
    int parameters;   /* how many hak_policy_parameter can read */
} hak_policy_t;

typedef struct hak_parameter_t {
    const char *name; /* "tau" */
    const char *what; /* one line, with its unit */
    double preset;    /* value after hak_bandit_init */
    double minimum;   /* inclusive */
    double maximum;   /* inclusive */
} hak_parameter_t;

typedef struct hak_regime_t { /* what was known of the arms while rewards stayed the same; fields as in hak_bandit_t */
    uint64_t steps;
    double weight[HAK_BANDIT_ARMS], sum[HAK_BANDIT_ARMS], mean[HAK_BANDIT_ARMS];
} hak_regime_t;

typedef struct hak_bandit_t {
    int policy; /* row of the policy table */
    int arms;
    double parameter[HAK_BANDIT_PARAMETERS];
    uint64_t random;                 /* state of the generator */
    uint64_t plays;                  /* since the start */
    uint64_t restarts;               /* detected changes: what was known of the arms was forgotten, or shelved */
    uint64_t pulls[HAK_BANDIT_ARMS]; /* since the start, never forgotten */
    uint64_t steps;                  /* t: plays since the last restart */
    uint64_t log_of;                 /* log_ahead is its logarithm */
    double log_ahead;
    double weight[HAK_BANDIT_ARMS]; /* N_i: pulls of the arm remembered (windowed, discounted) */
    double sum[HAK_BANDIT_ARMS];    /* of their rewards, weighted alike */
    double carry[HAK_BANDIT_ARMS];  /* rounding left over from sum, kept with a window */
    double mean[HAK_BANDIT_ARMS];   /* sum / weight */
    double width[HAK_BANDIT_ARMS];  /* 1 / sqrt(weight), kept where nothing is forgotten */
    double state[HAK_BANDIT_ARMS];  /* the policy's own: EMA, rating - 1500, sum of squares, ... (policy.c) */
    double rise[HAK_BANDIT_ARMS];   /* CUSUM of rewards above the mean, in noise units */
    double fall[HAK_BANDIT_ARMS];   /* and below */
    double last[HAK_BANDIT_ARMS];   /* latest reward of the arm */
    double price[HAK_BANDIT_ARMS];  /* latest part of its loss that smaller arms could save; below 0: unknown */
    double noise_squares;           /* squared differences of successive rewards of one arm */
    double noise_count;             /* how many */
    double previous;                /* reward of the play before (doubling), of the first player (Elo) */
    double root_factor;             /* factor of xi ln t / N_i under the root: 1, in D-UCB 4 */
    int current;                    /* arm a rule stands on; first player of an Elo match */
    int rival;                      /* second player */
    int stage;                      /* doubling: 1 downwards; Elo: whose turn; halving: pulls due to each arm left */
    int oldest;                     /* window: next slot to overwrite */
    int probation;                  /* 1: a change was seen; the next reward of `current` says which regime */
    int shelf;                      /* recall: where the present regime will be kept */
    int regimes;                    /* recall: shelves in use */
    hak_regime_t regime[HAK_BANDIT_REGIMES];
    unsigned char window_arm[HAK_BANDIT_WINDOW];
    double window_reward[HAK_BANDIT_WINDOW];
} hak_bandit_t;

int hak_policy_count(void);
int hak_policy_read(int policy, hak_policy_t *row);                           /* 0, or -1: no such row */
int hak_policy_find(const char *name);                                        /* row, or -1 */
int hak_policy_parameter(int policy, int number, hak_parameter_t *parameter); /* 0, or -1: no such parameter */

int hak_bandit_init(hak_bandit_t *bandit, int policy, int arms, uint64_t seed); /* 0, or -1: bad policy or arms */
int hak_bandit_set(hak_bandit_t *bandit, const char *parameter, double value); /* 0, -1: no such parameter, -2: range */
int hak_bandit_select(hak_bandit_t *bandit);                                   /* the arm to play now */
void hak_bandit_update(hak_bandit_t *bandit, int arm, double reward);          /* the reward of a play of any arm */

/* The same for rules that look at the allocator instead of the reward. `busy` is the share (0 to 1) of visits to the
 * depot in this play that found it busy; hak_bandit_update passes 0. */
void hak_bandit_update_busy(hak_bandit_t *bandit, int arm, double reward, double busy);

/* Where a larger arm means more of a resource, says before an update how much of the reward that resource costs. A
 * smaller arm can save no more than that, a larger one no more than the rest of 1 - reward; ucb-near decides by this
 * whether to try them. */
void hak_bandit_price(hak_bandit_t *bandit, int arm, double price);

double hak_bandit_index(const hak_bandit_t *bandit, int arm); /* what a selection compares; infinite: not played yet */
double hak_bandit_mean(const hak_bandit_t *bandit, int arm);  /* of the rewards remembered; 0: none */
double hak_bandit_bonus(const hak_bandit_t *bandit, int arm); /* index - mean where the policy has a bonus, else 0 */
double hak_bandit_noise(const hak_bandit_t *bandit);          /* standard deviation of rewards within an arm */
uint64_t hak_bandit_pulls(const hak_bandit_t *bandit, int arm); /* since the start */

/* Simulation: one bandit against a problem whose means are known. */

enum { HAK_REWARDS_EXACT = 0, HAK_REWARDS_BERNOULLI = 1, HAK_REWARDS_GAUSSIAN = 2 };

typedef struct hak_problem_t {
    int arms;
    int segments;          /* pieces of constant means */
    const uint64_t *start; /* [segments] plays made when the piece begins, ascending, start[0] = 0 */
    const double *mean;    /* [segments][arms] */
    int rewards;           /* HAK_REWARDS_... */
    double deviation;      /* Gaussian: standard deviation, in reward units */
} hak_problem_t;

typedef struct hak_outcome_t {
    int points;            /* rows of the curves below */
    const uint64_t *point; /* [points] plays made when they are read off, ascending, the last <= horizon */
    double *regret;        /* [replications][points] pseudo-regret so far: sum of best mean - mean of the arm played */
    uint64_t *best;        /* [replications][points] plays of an arm with the best mean so far */
    uint64_t *pulls;       /* [replications][arms] */
    uint64_t *restarts;    /* [replications] */
    unsigned char *arm;    /* [horizon] of replication `first`, or NULL */
    double *reward;        /* [horizon] likewise, or NULL */
} hak_outcome_t;

/* Replications first .. first + count - 1 of a run. Each has its own random streams, derived from the seed, so a run
 * may be split in any way. `learner` is copied and its seed replaced. 0, or -1: the problem has no segment, or
 * another number of arms than the learner. */
int hak_simulate(const hak_bandit_t *learner, const hak_problem_t *problem, uint64_t horizon, uint64_t first,
                 uint64_t count, uint64_t seed, hak_outcome_t *outcome);

/* --- ACE ---------------------------------------------------------------------------------------------------------- */

/* ACE, the Adaptive Cache Engine, plays one bandit per learner. The fast loop has a learner for every size class with
 * traffic (its arms: blocks a magazine holds). The slow loop has one each for the size of superslabs, the purge delay,
 * the threshold of large blocks and the return of idle memory. A setting in force that is no arm takes the place of the
 * nearest arm. A step observes the window that ends, rewards the arm that was in force, and puts the next arm into
 * force; heaps take it up at their next refill or spill.
 *
 * Reward of a window, without unit, at most 1:
 *     1 - (refills r + spills s + swaps w + contentions c + faults f + system calls y + bytes purged z) / CPU time
 *       - price * (bytes cached) / (bytes resident)
 * r, s, w, c, f, y, z are nanoseconds per event, measured on this machine when ACE starts; the price is a knob. An arm
 * counts as in force once the threads at work have taken it up; until then the reward goes to the former arm. */

typedef struct hak_window_t {
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t cpu_ns;           /* CPU time of the process in the window, evened out over 20 ms */
    uint64_t refills, spills;  /* of this learner's class, beyond the thread's own magazines; slow learners: all */
    uint64_t swaps;            /* of the thread's two magazines, instead of a refill or spill; slow learners: 0 */
    uint64_t contended;        /* visits to the depot that found it busy */
    uint64_t faults, syscalls; /* minor faults of the process; system calls of the allocator. Fast learners: 0 */
    uint64_t purged_bytes;     /* given back to the kernel, which clears them before they serve again. Fast: 0 */
    uint64_t cached_bytes;     /* in magazines and depot; slow: also kept runs, and free dirty memory */
    uint64_t live_bytes;       /* with callers; slow: also cached blocks */
} hak_window_t;

typedef struct hak_ace_costs_t { /* nanoseconds per event, measured at the start */
    double refill, spill, swap, contention, fault, syscall;
    double clear; /* per byte purged */
} hak_ace_costs_t;

typedef struct hak_learner_t {
    const char *knob;    /* "magazine_blocks", ... */
    uint32_t block_size; /* of the class; 0 where the knob is global */
    int32_t arms;
    int64_t settings[HAK_BANDIT_ARMS]; /* value of the knob under each arm */
    int32_t arm;                       /* in force */
    int32_t policy;                    /* row of the policy table; -1: chosen from outside */
    uint64_t windows;                  /* observed */
    double reward;                     /* of the last */
    double noise;                      /* standard deviation of rewards within an arm */
} hak_learner_t;

enum { HAK_REASON_POLICY = 0, HAK_REASON_FROZEN = 1, HAK_REASON_OUTSIDE = 2, HAK_REASON_RESTART = 3 };

typedef struct hak_event_t { /* one row per decision */
    uint64_t number;         /* 1, 2, ... over all learners */
    uint64_t time_ns;        /* CLOCK_MONOTONIC */
    int32_t learner;
    uint32_t block_size;
    uint32_t threads; /* heaps alive */
    uint32_t phase;   /* mark set by hak_ace_phase */
    int32_t policy;
    int32_t reason; /* HAK_REASON_... */
    int32_t arm;    /* in force in the window */
    int32_t next_arm;
    int64_t setting;               /* of the arm */
    uint64_t pulls;                /* of the arm, this window included */
    double reward;                 /* of the window */
    double told, price;            /* what the policy was told: the window's, except in the placebo (ace_shuffled) */
    double mean, bonus;            /* of the arm after the update */
    double index[HAK_BANDIT_ARMS]; /* of every arm after the update */
    hak_window_t window;
    uint64_t rss_bytes; /* of the process */
    uint64_t seed;
} hak_event_t;

/* 0; -1: already running; -2: compiled without ACE. The knob ace_enabled says whether it runs, and starts and stops it
 * as these two do. */
int hak_ace_start(void);
/* The knobs return to what they were before, with two exceptions: a knob that the program has set meanwhile keeps the
 * program's value, and the knob of a learner driven from outside stays. What was learned waits for the next start. */
void hak_ace_stop(void);
int hak_ace_step(uint64_t now_ns);  /* runs the steps due at this time; number of decisions. Needs no thread */
uint64_t hak_ace_firings(int slow); /* steps of the fast (0) or slow (1) loop so far */
hak_ace_costs_t hak_ace_costs(void);
int hak_ace_learner_count(void);
int hak_ace_learner_read(int learner, hak_learner_t *out); /* 0, or -1: no such learner */
/* Ends a window from outside; the reward is that of the arm chosen last. 0, or -1: no such learner. Each window of a
 * learner is told by the same clock. */
int hak_ace_observe(int learner, uint64_t now_ns, hak_window_t *window, double *reward);
/* Puts an arm into force; from then on whoever chooses also ends the windows, until arm -1 gives the learner back to
 * its own policy. 0, or -1: no such learner or arm. */
int hak_ace_choose(int learner, int arm);
int hak_ace_learner_of(uint32_t block_size); /* of its class, made if need be; -1: no such class, or no memory */
/* Sets a policy's parameter in every learner, now and later. How many have taken it, or -1: no such parameter or
 * value. */
int hak_ace_parameter(const char *name, double value);
void hak_ace_phase(uint32_t mark); /* marks what the program is doing, for the events */

size_t hak_event_read(uint64_t *cursor, hak_event_t *rows, size_t capacity,
                      uint64_t *lost); /* from *cursor on, 0: all; *lost grows by what was overwritten unread */
int hak_event_write(const char *path); /* appends what is new as CSV; number of rows, or -1 and errno */

/* cdef end */

/* --- inline: malloc and free -------------------------------------------------------------------------------------- */

/* For programs that link hakmem: malloc and free whose hit needs no call into the library and makes the same checks;
 * everything else still makes the call. Not part of the stable interface: compile against the header that the library
 * came with. Tops and slots are atomics without order, which compilers leave where they stand: who collects from a
 * thread at rest goes by the top, so none may be stored after the slots of the next call were read. */

#ifndef HAK_SLAB_SHIFT
#define HAK_SLAB_SHIFT 16 /* of the library linked: 14 for the variant slab16 */
#endif
#define HAK_INLINE_MAX 1024u
#define HAK_INLINE_MASK (((size_t)1 << 22) - 1)
#define HAK_INLINE_ROWS 114

struct hak_bin_t {
    uintptr_t *top;
    const uintptr_t *limit;
};

struct hak_layout_t {
    uint32_t within, start;
};

struct hak_owners_t {
    struct hak_layout_t layout[HAK_INLINE_ROWS];
    uint32_t bound[HAK_INLINE_MASK + 1]; /* lowest byte: twice the row */
};

struct hak_front_t {
    struct hak_bin_t *bins;
};

/* The symbol's name carries the number of this layout and the shift, so a program compiled for others does not start at
 * all, instead of going wrong. */
#define HAK_PASTE(a, b) a##b
#define HAK_FRONT(shift) HAK_PASTE(hak_front6_, shift)
#define hak_front HAK_FRONT(HAK_SLAB_SHIFT)

extern __thread struct hak_front_t hak_front __attribute__((tls_model("initial-exec")));
extern const struct hak_owners_t *const hak_owners; /* never changes, so a loop need not read it again */

static inline void *hak_malloc_inline(size_t size)
{
    if (__builtin_expect(size > HAK_INLINE_MAX, 0)) return hak_malloc(size);
    struct hak_bin_t *bin = (struct hak_bin_t *)((char *)hak_front.bins + ((size + 15) & ~(size_t)15));
    uintptr_t *top = __atomic_load_n(&bin->top, __ATOMIC_RELAXED), *block = (uintptr_t *)top[-1];
    if (__builtin_expect(*block != (uintptr_t)top, 0)) return hak_malloc(size); /* the check that malloc makes */
    __asm__("" : "+r"(top)); /* or the block's equal word is taken for it, and the next call waits for that load */
    __atomic_store_n(&bin->top, top - 1, __ATOMIC_RELAXED);
    return block;
}

/* Puts a block into a bin. 0, and nothing is done: it is no block of that layout, or the bin is full. */
static inline int hak_bin_put(struct hak_bin_t *bin, void *block, const struct hak_layout_t *layout, uint32_t bound)
{
    uint32_t product = ((uint32_t)(uintptr_t)block & layout->within) * layout->start;
    uintptr_t *top = __atomic_load_n(&bin->top, __ATOMIC_RELAXED);
    if (__builtin_expect(product >= bound, 0) || __builtin_expect(top >= bin->limit, 0)) return 0;
    __atomic_store_n(top, (uintptr_t)block, __ATOMIC_RELAXED);
    *(uintptr_t *)block = (uintptr_t)(top + 1);
    __atomic_store_n(&bin->top, top + 1, __ATOMIC_RELAXED);
    return 1;
}

/* Another thread may carve blocks of the same slab meanwhile, which raises the bound and leaves its row: so it does no
 * harm that gcc, which spends a register more on an atomic, may read it twice. A detector of races is told. */
static inline uint32_t hak_bound_of(const void *block)
{
    const uint32_t *bound = &hak_owners->bound[((uintptr_t)block >> HAK_SLAB_SHIFT) & HAK_INLINE_MASK];
#if defined(__SANITIZE_THREAD__) || defined(__clang__)
    return __atomic_load_n(bound, __ATOMIC_RELAXED);
#else
    return *bound;
#endif
}

static inline void hak_free_inline(void *block)
{
    uint32_t bound = hak_bound_of(block);
    uintptr_t row = bound & 255; /* twice the number of the row: scales to an offset in both tables */
    const struct hak_layout_t *layout = (const struct hak_layout_t *)((const char *)hak_owners->layout + row * 4);
    struct hak_bin_t *bin = (struct hak_bin_t *)((char *)hak_front.bins + row * 8);
    __asm__("" : "+r"(bin)); /* its address in one register: as the library's bin_at */
    if (!hak_bin_put(bin, block, layout, bound)) hak_free(block);
}

/* The same where the compiler knows the size that was asked for, as with C23's free_sized: what is looked up by it need
 * not wait for the block, and is folded away. A size that the program itself has to look up saves nothing. The block's
 * own class is checked all the same, so a wrong size costs time and no more. */
static inline void hak_free_sized_inline(void *block, size_t size)
{
    if (__builtin_expect(size > HAK_INLINE_MAX, 0)) {
        hak_free_inline(block);
        return;
    }
    uint32_t bound = hak_bound_of(block);
    uintptr_t offset = (size + 15) & ~(size_t)15;
    const struct hak_layout_t *layout = (const struct hak_layout_t *)((const char *)hak_owners->layout + offset / 2);
    struct hak_bin_t *bin = (struct hak_bin_t *)((char *)hak_front.bins + offset);
    if (__builtin_expect((bound & 255) * 8 != offset, 0) || !hak_bin_put(bin, block, layout, bound)) hak_free(block);
}

/* --- inline: stack pool ------------------------------------------------------------------------------------------- */

/* What a hit needs. `owner` is NULL in everything unusual (a shared or destroyed pool, a checked build), so one
 * comparison tells the owner's hit from all other cases, another thread's call too; these go on in the library. */
struct hak_pool {
    void *owner;          /* __builtin_thread_pointer() of the only thread that may take the path below, or NULL */
    void **top;           /* freed objects; the first word of each links to the next */
    uint64_t allocations; /* one add is all that statistics cost a pair of calls; the rest is derived when read */
};

/* The whole functions, under symbols of their own: an inlined one that called its own name would be taken for
 * recursive. */
void *hak_pool_allocate_whole(hak_pool_t *pool);
int hak_pool_deallocate_whole(hak_pool_t *pool, void *object);

#ifndef HAK_LIBRARY /* which defines them itself */
#define HAK_POOL_INLINE extern inline __attribute__((gnu_inline, always_inline))

/* `counted` is a constant: 1, or 0 in the experiment that shows what counting costs. */
HAK_POOL_INLINE void *hak_pool_take(hak_pool_t *pool, int counted)
{
    void **object = pool->top;
    if (__builtin_expect(pool->owner != __builtin_thread_pointer() || !object, 0)) return hak_pool_allocate_whole(pool);
    pool->top = (void **)*object;
    if (counted) pool->allocations++;
    return object;
}

HAK_POOL_INLINE int hak_pool_deallocate(hak_pool_t *pool, void *object)
{
    if (__builtin_expect(pool->owner != __builtin_thread_pointer() || !object, 0))
        return hak_pool_deallocate_whole(pool, object);
    *(void **)object = (void *)pool->top;
    pool->top = (void **)object;
    return HAK_POOL_OK;
}

HAK_POOL_INLINE void *hak_pool_allocate(hak_pool_t *pool) { return hak_pool_take(pool, 1); }
#endif

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
