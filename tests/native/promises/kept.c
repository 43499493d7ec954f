/* Promise 10, of runs that threads keep: they go back when a thread rests, and serve others before memory grows. */
#include "../library.h"
#include "../peak.h"
#include <malloc.h>
#include <time.h>

PROMISE(a_peak_of_40_mib_of_200_kib_blocks_goes_back) {
    enum { SMALL_PEAK = 40 * MIB };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    peak_of(200 * KIB); /* the helper is there by now */
    for (int round = 0; round < 5; round++) {
        for (size_t i = 0; i < SMALL_PEAK / (200 * KIB); i++) memset(blocks[i] = malloc(200 * KIB), 1, 200 * KIB);
        for (size_t i = 0; i < SMALL_PEAK / (200 * KIB); i++) free(blocks[i]);
    }
    expect_at_most(before + SMALL_PEAK / 10);
}

/* A thread works in bursts of as many runs as it may keep, and rests, which another one does not wait for. */
static pthread_barrier_t burst_over;
static void *burst_of_runs(void *unused) {
    (void)unused;
    static char *runs[100];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 100; i++) memset(runs[i] = malloc(500 * KIB), 1, 500 * KIB);
        for (int i = 0; i < 100; i++) free(runs[i]);
    }
    pthread_barrier_wait(&burst_over);
    pthread_barrier_wait(&burst_over);
    return NULL;
}

PROMISE(what_a_thread_keeps_serves_others_before_memory_grows) {
    pthread_t thread;
    pthread_barrier_init(&burst_over, NULL, 2);
    set_knob("purge_delay_ms", 10000);
    HOLDS(pthread_create(&thread, NULL, burst_of_runs, NULL) == 0);
    pthread_barrier_wait(&burst_over);
    long before = resident_bytes();
    for (int i = 0; i < 60; i++) memset(blocks[i] = malloc(800 * KIB), 1, 800 * KIB);
    HOLDS(resident_bytes() < before + 10 * MIB);
    pthread_barrier_wait(&burst_over);
    pthread_join(thread, NULL);
}

/* What one thread frees and another asked for waits for it, but not for ever: as many of each length as may wait. */
enum { HANDED_ON = 64 * MIB };
static size_t handed_on;
static void *free_and_rest(void *unused) {
    free(malloc(16)); /* now it may have something to pass on */
    pthread_barrier_wait(&burst_over);
    pthread_barrier_wait(&burst_over);
    for (size_t i = 0; i < handed_on; i++) free(blocks[i]);
    pthread_barrier_wait(&burst_over);
    return unused;
}

PROMISE(what_was_passed_on_goes_back_when_both_threads_rest) {
    static const size_t units[] = {1, 2, 3, 4, 6, 8};
    pthread_t thread;
    memset(blocks, 0, sizeof blocks);
    pthread_barrier_init(&burst_over, NULL, 2);
    HOLDS(pthread_create(&thread, NULL, free_and_rest, NULL) == 0);
    pthread_barrier_wait(&burst_over);
    long before = resident_bytes();
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t size = units[u] * 64 * KIB - 16 * KIB;
        for (size_t i = 0; i < HANDED_ON / 6 / size; i++) memset(blocks[handed_on++] = malloc(size), 1, size);
    }
    pthread_barrier_wait(&burst_over);
    expect_at_most(before + HANDED_ON / 6);
    pthread_barrier_wait(&burst_over);
    pthread_join(thread, NULL);
}

/* What a thread keeps is collected while it works, ends, and another takes its place: each block is one thread's. */
static _Atomic int churn_over;
static void *trim_for_ever(void *unused) {
    while (!churn_over) malloc_trim(0);
    return unused;
}

static void *work_and_end(void *mark) {
    enum { RUNS = 300 };
    char *runs[RUNS];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < RUNS; i++) *(void **)(runs[i] = malloc((70 + i % 3 * 100) * KIB)) = mark;
        for (size_t i = 0; i < RUNS; i++) {
            HOLDS(*(void **)runs[i] == mark);
            free(runs[i]);
        }
    }
    return NULL;
}

PROMISE(what_a_thread_keeps_is_collected_while_threads_come_and_go) {
    pthread_t trimmer, workers[2];
    peak_of(200 * KIB); /* the helper is there by now */
    HOLDS(pthread_create(&trimmer, NULL, trim_for_ever, NULL) == 0);
    for (time_t end = time(NULL) + 3; time(NULL) < end;) {
        for (size_t i = 0; i < 2; i++) HOLDS(pthread_create(&workers[i], NULL, work_and_end, &workers[i]) == 0);
        for (int i = 0; i < 2; i++) pthread_join(workers[i], NULL);
    }
    churn_over = 1;
    pthread_join(trimmer, NULL);
}

/* Where none of the right length lies ready a longer run serves, but not for ever. */
PROMISE(what_longer_runs_served_gets_runs_of_its_own) {
    for (size_t longer = 150 * KIB; longer <= 200 * KIB; longer += 50 * KIB) {
        char *block = malloc(longer);
        free(block);
        for (int i = 0; i < 50; i++) {
            block = malloc(100 * KIB);
            free(block);
        }
        block = malloc(100 * KIB);
        HOLDS(span_of(block).size <= 128 * KIB); /* it stays, so the next round begins without one */
    }
}

enum { KEEPERS = 3, KEPT_RUNS = 300, KEPT_SIZE = 200000 };
static pthread_barrier_t all_keep;

static void *keep_runs_and_rest(void *unused) {
    char *held[KEPT_RUNS];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < KEPT_RUNS; i++) held[i] = memset(malloc(KEPT_SIZE), 1, KEPT_SIZE);
        for (int i = 0; i < KEPT_RUNS; i++) free(held[i]);
    }
    pthread_barrier_wait(&all_keep);
    for (;;) pause();
    return unused;
}

/* They rest in the parent; in the child they are not there at all. */
PROMISE(a_child_uses_the_runs_of_threads_that_stayed_behind) {
    pthread_t thread;
    pthread_barrier_init(&all_keep, NULL, KEEPERS + 1);
    for (int i = 0; i < KEEPERS; i++) HOLDS(pthread_create(&thread, NULL, keep_runs_and_rest, NULL) == 0);
    pthread_barrier_wait(&all_keep);
    pid_t child = fork();
    if (child == 0) {
        static char *held[KEEPERS * KEPT_RUNS];
        long before = resident_bytes();
        for (int i = 0; i < KEEPERS * KEPT_RUNS; i++) held[i] = memset(malloc(KEPT_SIZE), 2, KEPT_SIZE);
        HOLDS(resident_bytes() - before < (long)KEEPERS * KEPT_RUNS * KEPT_SIZE / 2);
        for (int i = 0; i < KEEPERS * KEPT_RUNS; i++) free(held[i]);
        _exit(0);
    }
    int status;
    HOLDS(waitpid(child, &status, 0) == child && status == 0);
}

static void *take_one_and_rest(void *unused) {
    HOLDS(malloc(100) != NULL);
    pthread_barrier_wait(&all_keep);
    for (;;) pause();
    return unused;
}

/* Of long blocks each of so many threads may keep next to none. */
PROMISE(long_blocks_are_served_beside_hundreds_of_threads) {
    enum { MANY = 300, SOME = 64, STACK = 64 * KIB };
    static char *some[SOME];
    pthread_t thread;
    pthread_attr_t small;
    HOLDS(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, STACK) == 0);
    pthread_barrier_init(&all_keep, NULL, MANY + 1);
    for (int i = 0; i < MANY; i++) HOLDS(pthread_create(&thread, &small, take_one_and_rest, NULL) == 0);
    pthread_barrier_wait(&all_keep);
    for (size_t size = 9000; size <= 32 * KIB; size += 2000) {
        for (int i = 0; i < SOME; i++) HOLDS((some[i] = malloc(size)) != NULL && memset(some[i], i, size));
        for (int i = 0; i < SOME; i++) HOLDS(some[i][0] == i && some[i][size - 1] == i);
        for (int i = 0; i < SOME; i++) free(some[i]);
    }
}

/* What a thread asks for once its heap has ended comes from slabs under a lock; before they grow, runs are collected. */
enum { LATE = 4, LATE_BLOCKS = 100 };
static _Atomic int late_over;
static void ask_late(void *unused) {
    (void)unused;
    for (int i = 0; i < LATE_BLOCKS; i++) HOLDS(malloc(20000) != NULL);
}

static void *end_late(void *key) {
    free(malloc(16));
    pthread_setspecific(*(pthread_key_t *)key, key);
    return NULL;
}

static void *take_and_free_runs(void *size) {
    char *held[LATE_BLOCKS];
    while (!late_over) {
        for (int i = 0; i < LATE_BLOCKS; i++) *(held[i] = malloc((size_t)size)) = 1;
        for (int i = 0; i < LATE_BLOCKS; i++) free(held[i]);
    }
    return NULL;
}

static void *fork_all_the_time(void *unused) {
    while (!late_over) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        HOLDS(waitpid(child, NULL, 0) == child);
    }
    return unused;
}

PROMISE(threads_that_ask_for_memory_at_their_end_get_it_while_others_fork) {
    pthread_key_t key;
    pthread_t forks, end[LATE], run[LATE];
    alarm(60);
    HOLDS(pthread_key_create(&key, ask_late) == 0);
    for (size_t i = 0; i < LATE; i++)
        HOLDS(pthread_create(&run[i], NULL, take_and_free_runs, (void *)(100000 + 40000 * i)) == 0);
    HOLDS(pthread_create(&forks, NULL, fork_all_the_time, NULL) == 0);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < LATE; i++) HOLDS(pthread_create(&end[i], NULL, end_late, &key) == 0);
        for (int i = 0; i < LATE; i++) pthread_join(end[i], NULL);
    }
    late_over = 1;
    for (int i = 0; i < LATE; i++) pthread_join(run[i], NULL);
    pthread_join(forks, NULL);
}
