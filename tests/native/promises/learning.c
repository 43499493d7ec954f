/* What ACE does meanwhile, a thread that is cancelled and a history that nobody reads stop no fork; and blocks whose
 * threads only free are missed by nobody. */
#include "../library.h"
#include "../serve.h"
#include <pthread.h>
#include <sys/stat.h>

enum { BLOCKS = 3000, ROUNDS = 60, WINDOWS = 8 };
#define WINDOW_NS (UINT64_C(1) << 58)

static uint64_t (*step)(uint64_t);
static int (*write_history)(const char *);
static char history[] = "/tmp/hakmem-history-XXXXXX";

static void work(void) {
    static void *blocks[BLOCKS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(64);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
}

static void learn(void) {
    for (uint64_t window = 1; window <= WINDOWS; window++) {
        work();
        step(window * WINDOW_NS);
    }
}

static void fork_within_ten_seconds(void) {
    alarm(10);
    pid_t child = fork();
    if (child == 0) _exit(malloc(100) == NULL);
    wait_for(child);
    alarm(0);
}

static void *step_while_cancelled(void *unused) {
    learn();
    work();
    pthread_cancel(pthread_self());
    step((WINDOWS + 1) * WINDOW_NS);
    return unused;
}

PROMISE(a_thread_that_is_cancelled_in_a_step_stops_no_fork) {
    step = (uint64_t(*)(uint64_t))library("hak_ace_step");
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, step_while_cancelled, NULL) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);
    fork_within_ten_seconds();
    step((WINDOWS + 2) * WINDOW_NS);
}

static void *write_to_nobody(void *unused) {
    write_history(history);
    return unused;
}

PROMISE(a_history_that_nobody_reads_stops_no_fork) {
    step = (uint64_t(*)(uint64_t))library("hak_ace_step");
    write_history = (int (*)(const char *))library("hak_event_write");
    HOLDS(close(mkstemp(history)) == 0 && unlink(history) == 0 && mkfifo(history, 0600) == 0);
    int reader = open(history, O_RDWR | O_NONBLOCK);
    char filler[4096] = {0};
    while (write(reader, filler, sizeof filler) > 0) continue;
    learn();
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, write_to_nobody, NULL) == 0);
    usleep(200000); /* it writes, and waits */
    fork_within_ten_seconds();
    unlink(history);
}

enum { TASKS = 100, TASK_BLOCKS = 50, SIZE = 1000 };

static void *end_a_task(void *blocks) {
    for (int i = 0; i < TASK_BLOCKS; i++) free(((void **)blocks)[i]);
    return NULL;
}

/* What is freed by threads that do nothing else is no longer live. */
PROMISE(what_short_lived_threads_free_does_not_count_as_live) {
    int (*learner_of)(uint32_t) = (int (*)(uint32_t))library("hak_ace_learner_of");
    int (*observe)(int, uint64_t, hak_window_t *, double *) =
        (int (*)(int, uint64_t, hak_window_t *, double *))library("hak_ace_observe");
    for (int task = 0; task < TASKS; task++) {
        void *blocks[TASK_BLOCKS];
        pthread_t thread;
        for (int i = 0; i < TASK_BLOCKS; i++) blocks[i] = malloc(SIZE);
        HOLDS(pthread_create(&thread, NULL, end_a_task, blocks) == 0);
        HOLDS(pthread_join(thread, NULL) == 0);
    }
    hak_window_t window;
    double reward;
    HOLDS(observe(learner_of(SIZE), WINDOW_NS, &window, &reward) == 0);
    HOLDS(window.live_bytes < TASK_BLOCKS * SIZE);
}
