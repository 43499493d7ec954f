/* A program whose heap is damaged ends with one line, whatever its handler of SIGABRT does, and however many threads
 * find damage: the handler may allocate, free and fork. */
#include "../serve.h"
#include <signal.h>

enum { BLOCKS = 20000, SIZE = 48, THREADS = 4, REPORTED = 9 };

static void *before; /* a block from before the crime */

/* Two owners for one block, who meet at the latest when many are asked for. */
static void free_twice(void) {
    void *block = malloc(SIZE), *volatile same = block;
    free(block);
    free(same);
    for (int i = 0; i < BLOCKS; i++) malloc(SIZE);
}

/* Found while blocks are taken from what was freed, under a lock. */
static void write_to_freed(void) {
    static char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(SIZE);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i], 'A', SIZE);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(SIZE);
}

static pthread_barrier_t together;

static void *free_large_twice(void *unused) {
    void *block = malloc(100000), *volatile same = block;
    pthread_barrier_wait(&together);
    free(block);
    free(same);
    return unused;
}

static void threads_free_twice(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, free_large_twice, NULL) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void report(int signal) {
    (void)signal;
    serve_every_size(NULL);
    HOLDS((before = realloc(before, 3000)) != NULL && *(char *)before == 1);
    HOLDS((before = realloc(before, 300000)) != NULL && *(char *)before == 1);
    free(before);
    for (size_t alignment = 64; alignment <= 64 * KIB; alignment *= 4)
        HOLDS((uintptr_t)aligned_alloc(alignment, 300000) % alignment == 0 &&
              (uintptr_t)aligned_alloc(alignment, 40000) % alignment == 0);
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        serve_every_size(NULL);
        exit(0);
    }
    wait_for(child);
    exit(REPORTED);
}

static void *free_what_it_was_given(void *block) {
    free(realloc(block, 300000));
    serve_every_size(NULL);
    return NULL;
}

static void report_by_thread(int signal) {
    (void)signal;
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, free_what_it_was_given, malloc(100)) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);
    exit(REPORTED);
}

static void damage_again(int signal) {
    (void)signal;
    realloc((char *)before + 8, 10);
    _exit(0);
}

/* How a child ends that commits a crime; its one line is read from its stderr. */
static int end_of(void (*crime)(void), void (*handler)(int)) {
    static char said[64 * KIB];
    int ends[2], status;
    HOLDS(pipe(ends) == 0);
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[1]);
        signal(SIGABRT, handler);
        memset(before = malloc(100), 1, 100);
        crime();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], said + length, sizeof said - 1 - length)) > 0;) length += (size_t)n;
    close(ends[0]);
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(strncmp(said, "hakmem: ", 8) == 0 && strchr(said, '\n') == said + length - 1);
    return status;
}

static void handler_works(void (*crime)(void)) {
    int status = end_of(crime, report);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == REPORTED);
}

PROMISE(a_handler_works_after_a_second_free) { handler_works(free_twice); }
PROMISE(a_handler_works_after_a_write_to_freed_blocks) { handler_works(write_to_freed); }
PROMISE(a_handler_works_after_crimes_of_several_threads) { handler_works(threads_free_twice); }

PROMISE(a_handler_may_have_a_thread_report) {
    alarm(20);
    int status = end_of(free_twice, report_by_thread);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == REPORTED);
}

PROMISE(threads_that_find_damage_at_once_say_one_line) {
    for (int i = 0; i < 20; i++) {
        int status = end_of(threads_free_twice, SIG_DFL);
        HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

PROMISE(damage_found_in_the_handler_ends_the_program_at_once) {
    int status = end_of(free_twice, damage_again);
    HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void *work_on(void *unused) {
    for (;;) {
        void *longer[65], *shorter[300];
        for (int i = 0; i < 65; i++) longer[i] = malloc(1000);
        for (int i = 0; i < 65; i++) free(longer[i]);
        for (int i = 0; i < 300; i++) shorter[i] = malloc(16);
        for (int i = 0; i < 300; i++) free(shorter[i]);
    }
    return unused;
}

PROMISE(a_program_that_ends_amid_its_threads_work_is_accused_of_nothing) {
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        HOLDS(child >= 0);
        if (child == 0) {
            pthread_t thread;
            HOLDS(pthread_create(&thread, NULL, work_on, NULL) == 0);
            usleep(10000 + 100 * i);
            exit(0);
        }
        wait_for(child);
    }
}
