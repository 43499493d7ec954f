/* Promise 10, its first half, of threads: memory goes back that they have when they rest or end, or pass on. */
#include "../library.h"
#include "../peak.h"
#include <limits.h>
#include <malloc.h>
#include <semaphore.h>
#include <stdbool.h>

/* Each of four threads frees what it allocated and stays, idle, with what it has in hand. */
enum { STAYING = 4 };
static pthread_barrier_t stage;

static void *rise_and_fall_and_stay(void *size) {
    size_t count = PEAK / STAYING / (size_t)size;
    char **own = calloc(count, sizeof *own);
    unsigned seed = (unsigned)(uintptr_t)own;
    pthread_barrier_wait(&stage);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = (size_t)size / 2 + (size_t)rand_r(&seed) % (size_t)size;
        memset(own[i] = malloc(bytes), 1, bytes);
    }
    pthread_barrier_wait(&stage);
    for (size_t left = count; left > 0; left--) {
        size_t at = (size_t)rand_r(&seed) % left;
        free(own[at]);
        own[at] = own[left - 1];
    }
    free(own);
    pthread_barrier_wait(&stage);
    pthread_barrier_wait(&stage);
    return NULL;
}

static void give_back_beside_threads(size_t size) {
    pthread_t threads[STAYING];
    pthread_barrier_init(&stage, NULL, STAYING + 1);
    for (int i = 0; i < STAYING; i++) pthread_create(&threads[i], NULL, rise_and_fall_and_stay, (void *)size);
    usleep(100000);
    long before = resident_bytes(); /* the threads' stacks are not the allocator's */
    pthread_barrier_wait(&stage);
    pthread_barrier_wait(&stage);
    HOLDS(resident_bytes() - before > PEAK / 10 * 9);
    pthread_barrier_wait(&stage);
    expect_given_back(before);
    pthread_barrier_wait(&stage);
    for (int i = 0; i < STAYING; i++) pthread_join(threads[i], NULL);
}

PROMISE(a_peak_of_about_1000_bytes_goes_back_from_threads_that_stay) { give_back_beside_threads(1000); }
PROMISE(a_peak_of_about_32_kib_goes_back_from_threads_that_stay) { give_back_beside_threads(32 * KIB); }
PROMISE(a_peak_of_about_300_kib_goes_back_from_threads_that_stay) { give_back_beside_threads(300 * KIB); }

enum { RESTING = 3, KINDS = 30, EACH = 16 };
static size_t kinds, step; /* bytes from one kind to the next */

static void *fill_hand_and_rest(void *own) {
    char *(*of)[EACH] = own;
    for (int turn = 0; turn < 2; turn++) { /* the second one with what is left */
        for (size_t kind = 0; kind < kinds; kind++)
            for (size_t i = 0; i < EACH; i++)
                memset(of[kind][i] = malloc((kind + 1) * step), (int)(kind + i), (kind + 1) * step);
        for (int wait = 0; turn == 0 && wait < 2; wait++) pthread_barrier_wait(&stage);
        for (size_t kind = 0; kind < kinds; kind++)
            for (size_t i = 0; i < EACH; i++) {
                HOLDS(of[kind][i][0] == (char)(kind + i) && of[kind][i][(kind + 1) * step - 1] == (char)(kind + i));
                free(of[kind][i]);
            }
        for (int wait = 0; turn == 0 && wait < 2; wait++) pthread_barrier_wait(&stage);
    }
    return NULL;
}

/* Of a small peak, all may lie in the threads' hands, and each free of it was a hit, of which nobody hears. The threads
 * rest before it, too, and the helper, which the 20 MiB started. */
static void expect_hands_to_empty(void) {
    static char *own[RESTING][KINDS][EACH];
    pthread_t threads[RESTING];
    pthread_barrier_init(&stage, NULL, RESTING + 1);
    free(memset(malloc(20 * MIB), 1, 20 * MIB));
    sleep(2);
    long before = resident_bytes();
    for (int i = 0; i < RESTING; i++) pthread_create(&threads[i], NULL, fill_hand_and_rest, own[i]);
    pthread_barrier_wait(&stage);
    long peak = resident_bytes();
    HOLDS(peak - before > (long)(RESTING * EACH * kinds * kinds / 2 * step));
    sleep(2);
    for (int i = 0; i < 2; i++) pthread_barrier_wait(&stage);
    expect_at_most(before + (peak - before) / 4); /* one block of each kind stays with each thread */
    pthread_barrier_wait(&stage);
    for (int i = 0; i < RESTING; i++) pthread_join(threads[i], NULL);
}

PROMISE(what_threads_have_in_their_magazines_goes_back_while_they_rest) {
    kinds = KINDS, step = KIB;
    expect_hands_to_empty();
}

PROMISE(what_threads_have_in_hand_of_about_100_kib_goes_back_while_they_rest) {
    kinds = 1, step = 100 * KIB;
    expect_hands_to_empty();
}

enum { SMALL = 25000 };

static void *fill_small_and_rest(void *own) {
    char **of = own;
    for (size_t i = 0; i < SMALL; i++) memset(of[i] = malloc(16 + i * 7919 % 497), 1, 16);
    for (int wait = 0; wait < 2; wait++) pthread_barrier_wait(&stage);
    for (size_t i = 0; i < SMALL; i++) free(of[i]);
    for (int wait = 0; wait < 2; wait++) pthread_barrier_wait(&stage);
    return NULL;
}

/* Each thread is at a slab of each class, most of it not handed out yet. Of each of those a page stays at most. */
PROMISE(the_slabs_that_threads_have_begun_go_back_while_they_rest) {
    enum { THREADS = 8 };
    static char *own[THREADS][SMALL];
    memset(own, 1, sizeof own); /* so that it counts before */
    pthread_t threads[THREADS];
    pthread_barrier_init(&stage, NULL, THREADS + 1);
    long before = resident_bytes();
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, fill_small_and_rest, own[i]);
    pthread_barrier_wait(&stage);
    long peak = resident_bytes();
    for (int i = 0; i < 2; i++) pthread_barrier_wait(&stage);
    expect_at_most(before + (peak - before) / 8);
    pthread_barrier_wait(&stage);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static _Atomic bool trimmed;

static void *say_so_again_and_again(void *unused) {
    void (*idle)(void) = (void (*)(void))library("hak_thread_idle");
    while (!trimmed) {
        char *own[64];
        for (size_t i = 0; i < 64; i++) memset(own[i] = malloc(16 * i + 16), (int)i, 16 * i + 16);
        for (size_t i = 0; i < 64; i++) {
            HOLDS(own[i][0] == (char)i && own[i][16 * i + 15] == (char)i);
            free(own[i]);
        }
        idle();
    }
    return unused;
}

/* On one core, a thread is stopped anywhere, and what takes its place is done before it goes on. */
PROMISE(what_a_thread_gives_back_is_not_taken_from_it_as_well) {
    enum { TRIMS = 8000 };
    pthread_t thread;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(sched_getcpu(), &core);
    HOLDS(sched_setaffinity(0, sizeof core, &core) == 0);
    free(memset(malloc(20 * MIB), 1, 20 * MIB)); /* now there is a helper, and threads can be collected from */
    usleep(100000);
    HOLDS(pthread_create(&thread, NULL, say_so_again_and_again, NULL) == 0);
    for (int i = 0; i < TRIMS; i++) usleep(20 + (unsigned)i % 50), malloc_trim(0);
    trimmed = true;
    pthread_join(thread, NULL);
}

static pthread_barrier_t all_have_it, all_may_rest;

/* A little of every length and class: what a thread keeps in hand. `rest`: then it says that it is idle, else it ends. */
static void *use_every_length(void *rest) {
    enum { COUNT = 32 };
    char *mine[COUNT];
    for (size_t i = 0; i < COUNT; i++) memset(mine[i] = malloc((1 + i / 4) * 60 * KIB), 1, (1 + i / 4) * 60 * KIB);
    for (size_t i = 0; i < COUNT; i++) free(mine[i]);
    for (size_t size = 100; size <= 32 * KIB; size += size / 8) free(memset(malloc(size), 1, size));
    for (int wait = 0; wait < 2; wait++) pthread_barrier_wait(&all_have_it);
    void (*idle)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "hak_thread_idle");
    if (rest && idle) idle();
    if (rest) pthread_barrier_wait(&all_may_rest);
    return NULL;
}

static void threads_give_back(bool rest) {
    enum { THREADS = 32 };
    pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * KIB); /* so that libc keeps the stacks, and frees nothing */
    pthread_barrier_init(&all_have_it, NULL, THREADS + 1);
    pthread_barrier_init(&all_may_rest, NULL, THREADS + 1);
    long before = resident_bytes();
    for (int i = 0; i < THREADS; i++)
        HOLDS(pthread_create(&threads[i], &small, use_every_length, rest ? &rest : NULL) == 0);
    pthread_barrier_wait(&all_have_it);
    long kept = resident_bytes() - before;
    sleep(2); /* the helper has done what there is to do */
    pthread_barrier_wait(&all_have_it);
    expect_at_most(before + kept / 15);
}

PROMISE(what_threads_had_in_hand_goes_back_when_they_end) { threads_give_back(false); }
PROMISE(what_threads_have_in_hand_goes_back_when_they_say_so) { threads_give_back(true); }

static void *hold_one_of_each_size(void *unused) {
    enum { COUNT = 60 };
    char *mine[COUNT];
    for (size_t i = 0; i < COUNT; i++) memset(mine[i] = malloc(16 + 66 * i), 1, 16 + 66 * i);
    pthread_barrier_wait(&all_have_it);
    pthread_barrier_wait(&all_may_rest);
    for (size_t i = 0; i < COUNT; i++) free(mine[i]);
    return unused;
}

/* What they hold is 8 MiB, in slabs of which hardly anything was ever touched: those are to get no huge pages. */
PROMISE(many_threads_that_hold_little_cost_little_and_leave_nothing) {
    enum { THREADS = 64 };
    pthread_t threads[THREADS];
    pthread_barrier_init(&all_have_it, NULL, THREADS + 1);
    pthread_barrier_init(&all_may_rest, NULL, THREADS + 1);
    long before = resident_bytes();
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, hold_one_of_each_size, NULL) == 0);
    pthread_barrier_wait(&all_have_it);
    HOLDS(resident_bytes() - before < 32 * MIB);
    pthread_barrier_wait(&all_may_rest);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    expect_at_most(before + 4 * MIB);
}

/* 12 MiB at a time, in runs, then nothing more. */
static void *answer_and_rest(void *seed) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    enum { REQUEST = 12 * MIB };
    unsigned chance = (unsigned)(size_t)seed;
    pthread_mutex_lock(&turn);
    size_t n = 0;
    for (size_t bytes = 0, size; bytes < REQUEST; bytes += size)
        size = 100 * KIB + (size_t)rand_r(&chance) % (300 * KIB), memset(blocks[n++] = malloc(size), 1, size);
    while (n > 0) free(blocks[--n]);
    pthread_mutex_unlock(&turn);
    pthread_barrier_wait(&all_have_it);
    pthread_barrier_wait(&all_may_rest);
    return seed;
}

enum { POOL = 64, CORES = 2 };

static void begin_again_on_few_cores(void) {
    cpu_set_t cores;
    HOLDS(sched_getaffinity(0, sizeof cores, &cores) == 0);
    if (CPU_COUNT(&cores) <= CORES) return;
    for (int core = CPU_SETSIZE - 1; CPU_COUNT(&cores) > CORES; core--) CPU_CLR(core, &cores);
    HOLDS(sched_setaffinity(0, sizeof cores, &cores) == 0);
    execl("/proc/self/exe", "again", promise_name, NULL);
    HOLDS(!"begun again");
}

/* What a thread may keep for its next turn is less where there are more threads than can have one at a time. */
PROMISE(many_threads_that_rest_keep_little) {
    begin_again_on_few_cores();
    pthread_t threads[POOL];
    pthread_barrier_init(&all_have_it, NULL, POOL + 1);
    pthread_barrier_init(&all_may_rest, NULL, POOL + 1);
    long before = resident_bytes();
    for (size_t i = 0; i < POOL; i++) HOLDS(pthread_create(&threads[i], NULL, answer_and_rest, (void *)i) == 0);
    pthread_barrier_wait(&all_have_it);
    HOLDS(resident_bytes() - before < POOL * 12 * MIB / 3);
    pthread_barrier_wait(&all_may_rest);
    for (int i = 0; i < POOL; i++) pthread_join(threads[i], NULL);
}

enum { HUNDREDS = 500 };

static void *use_all_sizes_and_rest(void *number) {
    char *held[200];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 200; i++) {
            size_t size = 16 + ((size_t)number * 131 + i * 977) % 20000;
            held[i] = memset(malloc(size), 1, size);
        }
        for (int i = 0; i < 200; i++) free(held[i]);
    }
    pthread_barrier_wait(&all_have_it);
    pthread_barrier_wait(&all_may_rest);
    return NULL;
}

/* Not even sixteen of each size, where these are long. */
PROMISE(hundreds_of_threads_that_rest_keep_less) {
    begin_again_on_few_cores();
    static pthread_t threads[HUNDREDS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * KIB);
    pthread_barrier_init(&all_have_it, NULL, HUNDREDS + 1);
    pthread_barrier_init(&all_may_rest, NULL, HUNDREDS + 1);
    long before = resident_bytes();
    for (size_t i = 0; i < HUNDREDS; i++)
        HOLDS(pthread_create(&threads[i], &small, use_all_sizes_and_rest, (void *)i) == 0);
    pthread_barrier_wait(&all_have_it);
    HOLDS(resident_bytes() - before < (long)HUNDREDS * 12 * MIB / 5);
    pthread_barrier_wait(&all_may_rest);
    for (int i = 0; i < HUNDREDS; i++) pthread_join(threads[i], NULL);
}

enum { TASK_SIZES = 32, TASK_BYTES = 96 * KIB, ROUNDS = 2 }; /* a task: so many bytes of each size */
static sem_t tasks[POOL], done;

static void *work_and_rest(void *own) {
    free(malloc(1));
    sem_post(&done);
    for (int round = 0; round < ROUNDS; round++) {
        sem_wait(own);
        for (size_t i = 0; blocks[i] != NULL; i++) free(blocks[i]);
        sem_post(&done);
    }
    pthread_barrier_wait(&all_may_rest);
    return own;
}

static void give_task(sem_t *worker) {
    size_t n = 0;
    for (size_t size = 32; size <= 32 * TASK_SIZES; size += 32)
        for (size_t bytes = 0; bytes < TASK_BYTES; bytes += size) blocks[n++] = memset(malloc(size), 1, size);
    blocks[n] = NULL;
    sem_post(worker);
    sem_wait(&done);
}

/* A pool of workers, which free what the thread that asked them has made. They get their tasks one after the other. */
PROMISE(many_workers_of_one_thread_keep_little) {
    begin_again_on_few_cores();
    pthread_t threads[POOL];
    pthread_barrier_init(&all_may_rest, NULL, POOL + 1);
    sem_init(&done, 0, 0);
    for (int i = 0; i < POOL; i++) {
        sem_init(&tasks[i], 0, 0);
        HOLDS(pthread_create(&threads[i], NULL, work_and_rest, &tasks[i]) == 0);
    }
    for (int i = 0; i < POOL; i++) sem_wait(&done);
    long before = resident_bytes();
    for (int i = 0; i < ROUNDS * POOL; i++) give_task(&tasks[i % POOL]);
    HOLDS(resident_bytes() - before < (long)POOL * TASK_SIZES * TASK_BYTES / 8);
    pthread_barrier_wait(&all_may_rest);
    for (int i = 0; i < POOL; i++) pthread_join(threads[i], NULL);
}

/* Threads whose magazines need more room than is usual leave none of it behind. */
static void *use_wide_magazines(void *unused) {
    enum { COUNT = 1200 };
    static __thread char *held[COUNT];
    for (size_t size = 16; size <= 32 * KIB; size += size < 1 * KIB ? 16 : size / 8) {
        for (int i = 0; i < COUNT; i++) held[i] = malloc(size);
        for (int i = 0; i < COUNT; i++) free(held[i]);
    }
    return unused;
}

STEP(threads_with_wide_magazines_come_and_go) {
    enum { THREADS = 24 };
    long before = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        HOLDS(pthread_create(&thread, NULL, use_wide_magazines, NULL) == 0);
        pthread_join(thread, NULL);
        malloc_trim(0);
        if (i == THREADS / 3) before = resident_bytes();
    }
    HOLDS(resident_bytes() - before < 4 * MIB);
}

PROMISE(threads_leave_no_room_of_magazines_behind) {
    setenv("HAKMEM_MAGAZINE_BYTES", "16M", 1);
    keep_in_new_process("threads_with_wide_magazines_come_and_go", NULL, environ);
}

/* Many threads that rest after a peak of each keep little of it: who takes from them is nobody. */
static pthread_barrier_t together;

static void *peak_and_rest(void *unused) {
    enum { SIZE = 3000, COUNT = MIB / SIZE };
    char *held[COUNT];
    for (int i = 0; i < COUNT; i++) memset(held[i] = malloc(SIZE), 1, SIZE);
    pthread_barrier_wait(&together);
    for (int first = 0; first < 3; first++)
        for (int i = first; i < COUNT; i += 3) free(held[i]);
    pthread_barrier_wait(&together);
    pthread_barrier_wait(&together);
    return unused;
}

PROMISE(a_peak_of_many_threads_that_rest_goes_back) {
    enum { THREADS = 200 };
    if (sysconf(_SC_NPROCESSORS_ONLN) > 8) UNTRIED("where few threads share a core each may keep more");
    pthread_t threads[THREADS];
    long before = resident_bytes();
    pthread_barrier_init(&together, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, peak_and_rest, NULL) == 0);
    pthread_barrier_wait(&together);
    long peak = resident_bytes() - before;
    pthread_barrier_wait(&together);
    expect_at_most(before + peak / 4);
    pthread_barrier_wait(&together);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void *peak_in_thread(void *size) {
    for (size_t i = 0; i < PEAK / 4 / (size_t)size; i++) {
        void *block = malloc((size_t)size);
        memset(block, 1, (size_t)size);
        blocks[__atomic_fetch_add((size_t *)&blocks[PEAK / 200 - 1], 1, __ATOMIC_RELAXED)] = block;
    }
    return NULL;
}

PROMISE(a_peak_made_by_threads_that_ended_goes_back) {
    pthread_t threads[4];
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, peak_in_thread, (void *)(size_t)(2 * KIB));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    HOLDS(resident_bytes() - before > PEAK / 2);
    for (size_t i = 0; i < PEAK / 200 - 1; i++) free(blocks[i]);
    expect_given_back(before);
}

/* Blocks that another thread frees are not this one's any more: it keeps no more of its own for them. */
static void *_Atomic handed;

static void *free_what_is_handed(void *count) {
    for (long left = (long)count; left > 0;) {
        void *block = __atomic_exchange_n((void **)&handed, NULL, __ATOMIC_ACQ_REL);
        if (block) free(block), left--;
        else sched_yield();
    }
    return NULL;
}

PROMISE(a_peak_goes_back_after_blocks_were_handed_over) {
    enum { HANDED = 20000 };
    pthread_t other;
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    pthread_create(&other, NULL, free_what_is_handed, (void *)(long)HANDED);
    for (int i = 0; i < HANDED; i++) {
        void *block = malloc(100 * KIB);
        while (__atomic_load_n((void **)&handed, __ATOMIC_ACQUIRE)) sched_yield();
        __atomic_store_n((void **)&handed, block, __ATOMIC_RELEASE);
    }
    pthread_join(other, NULL);
    peak_of(100 * KIB);
    expect_given_back(before);
}

static void *peak_of_this_thread(void *size) {
    peak_of((size_t)size);
    return NULL;
}

/* What a thread left behind ages, though a part of it comes and goes all the time. */
PROMISE(a_peak_goes_back_while_a_part_of_it_changes_hands) {
    pthread_t thread;
    memset(blocks, 0, sizeof blocks);
    HOLDS(pthread_create(&thread, NULL, free_what_is_handed, (void *)LONG_MAX) == 0);
    long before = resident_bytes();
    HOLDS(pthread_create(&thread, NULL, peak_of_this_thread, (void *)(size_t)MIB) == 0);
    pthread_join(thread, NULL);
    for (int waited = 0; waited < WAIT_MS && resident_bytes() - before >= KEPT_MAX; waited++) {
        usleep(1000);
        while (__atomic_load_n((void **)&handed, __ATOMIC_ACQUIRE)) sched_yield();
        __atomic_store_n((void **)&handed, memset(malloc(1 * MIB), 1, 1), __ATOMIC_RELEASE);
    }
    HOLDS(resident_bytes() - before < KEPT_MAX);
}

static void *use_runs_and_rest(void *unused) {
    char *runs[100];
    size_t bytes = 0, count = 0;
    for (; bytes < 4 * MIB; bytes += 33 * KIB + count % 30 * 16 * KIB, count++)
        memset(runs[count] = malloc(33 * KIB + count % 30 * 16 * KIB), 1, 33 * KIB);
    for (size_t i = 0; i < count; i++) free(runs[i]);
    pause();
    return unused;
}

PROMISE(runs_of_many_threads_that_rest_go_back) {
    enum { THREADS = 400 };
    pthread_attr_t small;
    pthread_t thread;
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * KIB);
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&thread, &small, use_runs_and_rest, NULL) == 0);
    expect_at_most(before + THREADS * 256L * KIB);
}
