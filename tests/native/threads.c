/* What the allocator owes to threads, forks and signals. Every promise ends by itself: a deadlock is found by the
 * alarm that each of them sets, in the parent and in the children alike. */
#include "serve.h"
#include "../../native/include/hakmem.h"
#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { DEADLOCK_S = 40, WORKERS = 4 };

typedef void *(*thread_main)(void *);

static pthread_t start(thread_main run, void *argument) {
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, run, argument) == 0);
    return thread;
}

static void start_all(pthread_t threads[WORKERS], thread_main run) {
    for (size_t i = 0; i < WORKERS; i++) threads[i] = start(run, (void *)i);
}

static void join_all(pthread_t threads[WORKERS]) {
    for (int i = 0; i < WORKERS; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
}

/* Some of every pool's blocks, each touched and checked: 16 B ... 2 MiB. */
static void *churn(void *seed) {
    unsigned char *blocks[64] = {0};
    size_t random = (size_t)seed * 2654435761u + 1;
    for (int i = 0; i < 400; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned char **block = &blocks[(random >> 33) % 64];
        size_t size = (size_t)16 << (random >> 40) % (i % 40 == 0 ? 18 : 12);
        free(*block);
        *block = i % 3 ? malloc(size) : calloc(1, size);
        HOLDS(*block != NULL);
        (*block)[0] = (*block)[size - 1] = (unsigned char)i;
        if (i % 7 == 0) HOLDS((*block = realloc(*block, size / 2 + 1)) && (*block)[0] == (unsigned char)i);
    }
    for (int i = 0; i < 64; i++) free(blocks[i]);
    return NULL;
}

/* A full process: every pool, a thread of its own, blocks of its parent, stdio and exit handlers. */
static void live_as_child(void *inherited) {
    alarm(DEADLOCK_S / 2);
    free(inherited);
    churn((void *)1);
    pthread_t threads[WORKERS];
    start_all(threads, churn);
    join_all(threads);
    exit(0);
}

/* ---- threads come and go ---- */

static void come_and_go(int count) {
    pthread_t threads[WORKERS];
    for (int i = 0; i < count; i += WORKERS) {
        start_all(threads, churn);
        join_all(threads);
    }
}

PROMISE(ten_thousand_threads_leave_nothing_behind) {
    alarm(2 * DEADLOCK_S);
    come_and_go(500);
    long mapped = mapped_bytes(), resident = resident_bytes();
    int maps = mappings();
    come_and_go(10000);
    HOLDS(resident_bytes() - resident < 32 * MIB);
    HOLDS(mapped_bytes() - mapped < 512 * MIB);
    HOLDS(mappings() - maps < 200);
}

/* ---- a thousand threads at a time ---- */

static pthread_barrier_t crowd;

static void *hold_and_leave(void *argument) {
    void *block = malloc(1000);
    pthread_barrier_wait(&crowd);
    free(block);
    return argument;
}

PROMISE(a_crowd_of_threads_is_served_and_forgotten) {
    enum { CROWD = 1000 };
    static pthread_t threads[CROWD];
    pthread_attr_t small_stacks;
    pthread_attr_init(&small_stacks);
    pthread_attr_setstacksize(&small_stacks, 64 * KIB);
    alarm(DEADLOCK_S);
    pthread_barrier_init(&crowd, NULL, CROWD);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < CROWD; i++)
            HOLDS(pthread_create(&threads[i], &small_stacks, hold_and_leave, NULL) == 0);
        for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
    }
    HOLDS(resident_bytes() < 256 * MIB);
}

/* ---- a thread with hardly a stack ---- */

static void *serve_all(void *unused) {
    serve_every_size(NULL);
    free(aligned_alloc(64 * KIB, 1 * MIB));
    malloc_trim(0);
    return unused;
}

PROMISE(the_least_stack_is_enough) {
    pthread_t thread;
    pthread_attr_t least;
    pthread_attr_init(&least);
    HOLDS(pthread_attr_setstacksize(&least, PTHREAD_STACK_MIN) == 0);
    alarm(DEADLOCK_S);
    for (int i = 0; i < 20; i++) {
        HOLDS(pthread_create(&thread, &least, serve_all, NULL) == 0);
        HOLDS(pthread_join(thread, NULL) == 0);
    }
}

/* ---- blocks cross threads ---- */

enum { PIPES = 1024, PASSED = 400000 };
static _Atomic(size_t *) pipes[PIPES];
static atomic_long produced, consumed;

static void *produce_and_consume(void *index) {
    size_t random = (size_t)index + 1;
    for (int i = 0; i < PASSED; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t words = 2 + (random >> 40) % (i % 100 == 0 ? 20000 : 60);
        size_t *mine = malloc(words * sizeof *mine);
        mine[0] = words;
        mine[words - 1] = words;
        produced += (long)words;
        size_t *theirs = atomic_exchange(&pipes[(random >> 20) % PIPES], mine);
        if (theirs == NULL) continue;
        HOLDS(theirs[theirs[0] - 1] == theirs[0]);
        consumed += (long)theirs[0];
        free(theirs);
    }
    return NULL;
}

PROMISE(blocks_are_freed_by_other_threads) {
    alarm(DEADLOCK_S);
    pthread_t threads[WORKERS];
    start_all(threads, produce_and_consume);
    join_all(threads);
    for (int i = 0; i < PIPES; i++) {
        consumed += pipes[i] ? (long)pipes[i][0] : 0;
        free(pipes[i]);
    }
    HOLDS(produced == consumed);
    HOLDS(resident_bytes() < 200 * MIB);
}

enum { LEGACY = 5000 };
static char *legacy[WORKERS][LEGACY];

static void *leave_legacy(void *index) {
    for (int i = 0; i < LEGACY; i++)
        legacy[(size_t)index][i] = memset(malloc(16 + i % 3000), 0x20 + (int)(size_t)index, 16);
    return NULL;
}

PROMISE(blocks_of_dead_threads_live_on_and_are_used_again) {
    pthread_t threads[WORKERS];
    long resident = 0;
    alarm(DEADLOCK_S);
    for (int round = 0; round < 30; round++) {
        start_all(threads, leave_legacy);
        join_all(threads);
        for (size_t i = 0; i < WORKERS; i++)
            for (int j = 0; j < LEGACY; j++) {
                HOLDS(legacy[i][j][0] == 0x20 + (char)i && legacy[i][j][15] == 0x20 + (char)i);
                if (j % 500 || round % 2) free(legacy[i][j]); /* a few outlive every round */
            }
        if (round == 5) resident = resident_bytes();
    }
    HOLDS(resident_bytes() - resident < 64 * MIB);
}

/* One thread only allocates, another only frees: memory must circulate. */
static void *only_frees(void *argument) {
    for (long i = 0; i < 2000000; i++) {
        size_t *block;
        while ((block = atomic_exchange(&pipes[i % PIPES], NULL)) == NULL) sched_yield();
        free(block);
    }
    return argument;
}

PROMISE(memory_circulates_from_consumer_to_producer) {
    alarm(DEADLOCK_S);
    pthread_t consumer = start(only_frees, NULL);
    for (long i = 0; i < 2000000; i++) {
        size_t *block = malloc(64 + (i & 7) * 16), *empty = NULL;
        *block = 1;
        while (!atomic_compare_exchange_weak(&pipes[i % PIPES], &empty, block)) empty = NULL, sched_yield();
    }
    pthread_join(consumer, NULL);
    HOLDS(resident_bytes() < 64 * MIB);
}

/* ---- thread exit ---- */

static pthread_key_t late_key;

static void allocate_late(void *left) {
    churn(left);
    free(malloc(100));
    if ((size_t)left > 1) pthread_setspecific(late_key, (void *)((size_t)left - 1));
}

static void *exit_with_destructors(void *argument) {
    pthread_setspecific(late_key, (void *)(size_t)PTHREAD_DESTRUCTOR_ITERATIONS);
    void *block = malloc(5000);
    free(block);
    return argument;
}

PROMISE(tls_destructors_may_allocate_in_every_round) {
    alarm(DEADLOCK_S);
    /* Keys are destroyed in order of creation: whichever the allocator's own key is, one of these comes later. */
    for (int i = 0; i < 8; i++) pthread_key_create(&late_key, allocate_late);
    long resident = 0;
    for (int i = 0; i < 3000; i += WORKERS) {
        pthread_t threads[WORKERS];
        start_all(threads, exit_with_destructors);
        join_all(threads);
        if (i == 600) resident = resident_bytes();
    }
    HOLDS(resident_bytes() - resident < 16 * MIB);
}

enum { CROWD = 64 };
static pthread_key_t last_key;
static pthread_barrier_t crowd_there;

static void allocate_in_the_last_round(void *round) {
    if ((size_t)round < PTHREAD_DESTRUCTOR_ITERATIONS) pthread_setspecific(last_key, (char *)round + 1);
    else free(memset(malloc(100), 1, 100));
}

static void *end_together(void *argument) {
    pthread_setspecific(last_key, (void *)1);
    pthread_barrier_wait(&crowd_there);
    return argument;
}

/* No hook of the allocator's is called for it any more. Stacks of so many threads do not all stay mapped. */
PROMISE(a_thread_may_allocate_first_in_its_last_round_of_destructors) {
    int (*read_stats)(hak_stat_t *, int) = (int (*)(hak_stat_t *, int))dlsym(RTLD_DEFAULT, "hak_stat_read");
    static hak_stat_t rows[64];
    pthread_t threads[CROWD];
    alarm(DEADLOCK_S);
    pthread_key_create(&last_key, allocate_in_the_last_round);
    pthread_barrier_init(&crowd_there, NULL, CROWD);
    for (int i = 0; i < CROWD; i++) HOLDS(pthread_create(&threads[i], NULL, end_together, NULL) == 0);
    for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
    if (read_stats != NULL) HOLDS(read_stats(rows, 64) > 0);
    for (int i = 0; i < CROWD; i++) free(malloc(100));
}

static void allocate_all_sizes_late(void *round) {
    if ((size_t)round < PTHREAD_DESTRUCTOR_ITERATIONS) pthread_setspecific(last_key, (char *)round + 1);
    else for (size_t size = 16; size <= 32 * KIB; size += size / 4 / 16 * 16 + 16) free(memset(malloc(size), 1, size));
}

static void *end_alone(void *argument) {
    pthread_setspecific(last_key, (void *)1);
    return argument;
}

/* Nor is what they had left behind. */
PROMISE(threads_that_allocate_first_in_their_last_round_of_destructors_leave_nothing) {
    alarm(DEADLOCK_S);
    pthread_key_create(&last_key, allocate_all_sizes_late);
    long resident = 0;
    for (int i = 0; i < 3000; i++) {
        pthread_t thread;
        HOLDS(pthread_create(&thread, NULL, end_alone, NULL) == 0);
        pthread_join(thread, NULL);
        if (i == 600) resident = resident_bytes();
    }
    HOLDS(resident_bytes() - resident < 16 * MIB);
}

static void *churn_forever(void *seed) {
    while (churn(seed) == NULL) {}
    return NULL;
}

PROMISE(a_process_may_exit_while_its_threads_allocate) {
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(DEADLOCK_S / 2);
            for (size_t j = 0; j < WORKERS; j++) start(churn_forever, (void *)j);
            usleep(2000);
            exit(0);
        }
        wait_for(child);
    }
}

/* ---- fork ---- */

static void *fork_often(void *index) {
    for (int i = 0; i < 40; i++) {
        void *inherited = malloc((size_t)100 << (i % 12));
        pid_t child = fork();
        HOLDS(child >= 0);
        if (child == 0) live_as_child(inherited);
        free(inherited);
        wait_for(child);
        churn(index);
    }
    return NULL;
}

PROMISE(fork_is_safe_from_any_thread_at_any_time) {
    alarm(DEADLOCK_S);
    pthread_t threads[WORKERS];
    start(churn_forever, (void *)77);
    start(churn_forever, (void *)78);
    start_all(threads, fork_often);
    join_all(threads);
}

static void *fork_forever(void *forks) {
    for (;;) {
        pid_t child = fork();
        if (child == 0) {
            alarm(DEADLOCK_S / 2);
            _exit(churn((void *)3) != NULL);
        }
        atomic_fetch_add((atomic_int *)forks, 1);
        wait_for(child);
    }
    return NULL;
}

/* The last act of a program is to forget the handlers of fork, while a thread may be between two of them. Pages make
 * the forks long. */
PROMISE(a_process_may_exit_while_its_threads_fork) {
    size_t bytes = 64 << 20;
    char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HOLDS(pages != MAP_FAILED);
    madvise(pages, bytes, MADV_NOHUGEPAGE);
    memset(pages, 1, bytes);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            static atomic_int forks;
            alarm(DEADLOCK_S / 2);
            for (size_t j = 0; j < WORKERS; j++) start(fork_forever, &forks);
            while (atomic_load(&forks) < i) sched_yield();
            usleep(500);
            exit(0);
        }
        wait_for(child);
    }
}

PROMISE(grandchildren_are_full_processes_too) {
    alarm(DEADLOCK_S);
    start(churn_forever, (void *)5);
    pid_t child = fork();
    if (child == 0) {
        alarm(DEADLOCK_S / 2);
        start(churn_forever, (void *)6);
        pid_t grandchild = fork();
        if (grandchild == 0) live_as_child(malloc(50));
        wait_for(grandchild);
        live_as_child(malloc(50));
    }
    wait_for(child);
}

/* getline allocates under its stream's lock, fork takes the list of streams, fflush(NULL) wants both: an allocator
 * that takes its own locks before fork takes the list closes the circle. Long lines leave the allocator's fast path. */
static void *read_lines(void *argument) {
    enum { LENGTH = 300 * KIB };
    FILE *stream = fmemopen(NULL, LENGTH, "w+");
    for (int i = 0; i < LENGTH - 1; i++) putc('x', stream);
    for (;; rewind(stream)) {
        char *line = NULL;
        size_t capacity = 0;
        rewind(stream);
        HOLDS(getline(&line, &capacity, stream) >= LENGTH - 1);
        free(line);
    }
    return argument;
}

static void *flush_all(void *argument) {
    for (;;) {
        fflush(NULL);
        free(malloc(300));
    }
    return argument;
}

PROMISE(fork_with_getline_and_fflush_does_not_deadlock) {
    alarm(DEADLOCK_S);
    start(read_lines, NULL);
    start(read_lines, NULL);
    start(flush_all, NULL);
    for (int i = 0; i < 25; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(DEADLOCK_S / 2);
            fflush(NULL);
            churn((void *)3);
            _exit(0);
        }
        wait_for(child);
    }
    _exit(0);
}

static void allocate_around_fork(void) { churn((void *)4); }

static void register_handlers(void) {
    pthread_atfork(allocate_around_fork, allocate_around_fork, allocate_around_fork);
}

/* Registered before any library's constructor ran, so these handlers run inside the allocator's own. */
static void register_early(int argc, char **argv, char **environment) {
    (void)environment;
    if (argc > 1 && strcmp(argv[1], "early_atfork_handlers_may_allocate") == 0) register_handlers();
}
__attribute__((section(".preinit_array"), used)) static void (*const early)(int, char **, char **) = register_early;

static void fork_between_handlers(void) {
    alarm(DEADLOCK_S);
    start(churn_forever, (void *)9);
    start(churn_forever, (void *)10);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) live_as_child(malloc(10));
        wait_for(child);
    }
}

PROMISE(early_atfork_handlers_may_allocate) { fork_between_handlers(); }

PROMISE(late_atfork_handlers_may_allocate) {
    register_handlers();
    fork_between_handlers();
}

PROMISE(vfork_and_system_work_beside_allocating_threads) {
    alarm(DEADLOCK_S);
    start(churn_forever, (void *)11);
    for (int i = 0; i < 20; i++) {
        HOLDS(system("exit 0") == 0);
        pid_t child = vfork();
        if (child == 0) _exit(execl("/bin/sh", "sh", "-c", "exit 0", NULL));
        wait_for(child);
    }
}

/* No hook of fork is called. The parent has one thread: so little has been taken that there is no helper. */
PROMISE(a_child_made_past_the_hooks_of_fork_is_served) {
    pid_t (*past_hooks)(void) = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork"); /* since glibc 2.34 */
    if (past_hooks == NULL) UNTRIED("this libc has no _Fork");
    char *inherited = memset(malloc(100), 1, 100);
    alarm(DEADLOCK_S);
    pid_t child = past_hooks();
    HOLDS(child >= 0);
    if (child == 0) {
        HOLDS(inherited[99] == 1);
        live_as_child(inherited);
    }
    wait_for(child);
    churn((void *)2);
}

/* ---- signals and cancellation ---- */

static atomic_int ticks;

static void count_tick(int signal) {
    (void)signal;
    ticks++;
}

PROMISE(signals_interrupt_nothing) {
    struct sigaction action = {.sa_handler = count_tick};
    struct itimerval each_200_us = {{0, 200}, {0, 200}}, off = {{0, 0}, {0, 0}};
    alarm(DEADLOCK_S);
    sigaction(SIGVTALRM, &action, NULL);
    setitimer(ITIMER_VIRTUAL, &each_200_us, NULL);
    pthread_t threads[WORKERS];
    for (int i = 0; i < 10 || (ticks < 50 && i < 1000); i++) {
        start_all(threads, churn);
        join_all(threads);
        for (size_t size = 1; size < 64u * MIB; size *= 8) free(calloc(1, size)); /* system calls under fire */
    }
    setitimer(ITIMER_VIRTUAL, &off, NULL);
    HOLDS(ticks > 0);
}

static atomic_int passed_cancellation;

static void *churn_while_cancelled(void *argument) {
    while (!atomic_load((atomic_int *)argument)) sched_yield();
    churn((void *)1);
    for (size_t size = 1; size < 64u * MIB; size *= 2) free(realloc(malloc(size), size * 2));
    passed_cancellation = 1;
    pthread_testcancel();
    promise_end(EXIT_BROKEN, "pthread_testcancel returned", __LINE__);
}

PROMISE(nothing_is_a_cancellation_point) {
    static atomic_int cancelled;
    void *result;
    pthread_t thread = start(churn_while_cancelled, &cancelled);
    pthread_cancel(thread);
    cancelled = 1;
    pthread_join(thread, &result);
    HOLDS(result == PTHREAD_CANCELED && passed_cancellation);
}
