/* Promise 8: a background thread, if there is one, is nobody's concern. Each promise first does what may start one. */
#include "../library.h"
#include "../serve.h"
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* 128 MiB of every kind come and go: whatever wakes a helper has happened. */
static void wake_helper(void) {
    enum { BLOCKS = 4096 };
    static char *blocks[BLOCKS];
    for (size_t size = 32 * KIB; size >= 1 * KIB; size /= 8) {
        for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(size), 1, size);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
    usleep(50000);
}

/* Sum over all threads but the calling one of what `measure` reads from a line of /proc/self/task/N/status. */
static unsigned long of_other_threads(unsigned long (*measure)(const char *line)) {
    unsigned long sum = 0;
    char path[300], line[256];
    DIR *tasks = opendir("/proc/self/task");
    HOLDS(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        if (task->d_name[0] == '.' || atoi(task->d_name) == (int)syscall(SYS_gettid)) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status)) sum += measure(line);
        if (status) fclose(status);
    }
    closedir(tasks);
    return sum;
}

static unsigned long one_a_thread(const char *line) { return strncmp(line, "Pid:", 4) == 0; }

/* 1 for a thread that lets a catchable signal of 1 ... 31 in. */
static unsigned long receives_signals(const char *line) {
    const unsigned long catchable = 0x7fffffff & ~(1ul << 8) & ~(1ul << 18); /* all but SIGKILL and SIGSTOP */
    return strncmp(line, "SigBlk:", 7) == 0 && (strtoul(line + 7, NULL, 16) & catchable) != catchable;
}

static unsigned long switches(const char *line) {
    const char *found = strstr(line, "ctxt_switches:");
    return found ? strtoul(found + 14, NULL, 10) : 0;
}

PROMISE(the_helper_blocks_all_signals) {
    wake_helper();
    HOLDS(of_other_threads(receives_signals) == 0);
}

PROMISE(an_idle_helper_sleeps) {
    wake_helper();
    sleep(4); /* until what was freed has gone back */
    unsigned long before = of_other_threads(switches);
    sleep(1);
    HOLDS(of_other_threads(switches) - before <= 20);
}

/* Pages that the kernel does not take are asked for ever more seldom: of a few looks, one finds the helper asleep. */
PROMISE(an_idle_helper_sleeps_though_all_is_locked) {
    enum { BLOCKS = 300000, SIZE = 1000, STAYS = 650 }; /* blocks of ten slabs: rows of slabs between them */
    static char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    if (mlockall(MCL_CURRENT) != 0) UNTRIED("no memory may be locked here");
    for (int i = 0; i < BLOCKS; i++)
        if (i % STAYS != 0) free(blocks[i]);
    sleep(4);
    unsigned long fewest = 3;
    for (int look = 0; look < 3 && fewest > 2; look++) {
        unsigned long before = of_other_threads(switches);
        sleep(2);
        fewest = of_other_threads(switches) - before;
    }
    HOLDS(fewest <= 2);
}

static void *serve_little_and_rest(void *unused) {
    for (size_t size = 16; size <= 8 * KIB; size *= 2) free(memset(malloc(size), 1, size));
    pause();
    return unused;
}

/* They are more than it looks at in one round. */
PROMISE(an_idle_helper_sleeps_beside_hundreds_of_threads) {
    enum { THREADS = 600 };
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * KIB);
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&thread, &small, serve_little_and_rest, NULL) == 0);
    wake_helper();
    sleep(6); /* until it has looked at all of them */
    unsigned long before = of_other_threads(switches);
    sleep(2);
    HOLDS(of_other_threads(switches) - before <= 4);
}

PROMISE(a_child_has_no_helper_and_needs_none) {
    wake_helper();
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        HOLDS(of_other_threads(one_a_thread) == 0);
        wake_helper();
        serve_in_threads();
        exit(0);
    }
    wait_for(child);
}

static void keep_runs(void) {
    static char *runs[100];
    for (int i = 0; i < 100; i++) memset(runs[i] = malloc(400 * KIB), 1, 400 * KIB);
    for (int i = 0; i < 100; i++) free(runs[i]);
}

static void *fork_a_child(void *unused) {
    (void)unused;
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        wake_helper();
        keep_runs();
        sleep(4);
        unsigned long before = of_other_threads(switches);
        sleep(2);
        HOLDS(of_other_threads(one_a_thread) == 1 && of_other_threads(switches) - before <= 2);
        _exit(0);
    }
    wait_for(child);
    return NULL;
}

/* Though the child knows nothing of what a thread kept that stayed behind. */
PROMISE(an_idle_helper_sleeps_in_a_thread_s_child) {
    pthread_t thread;
    wake_helper();
    for (int round = 0; round < 10; round++) keep_runs();
    HOLDS(pthread_create(&thread, NULL, fork_a_child, NULL) == 0);
    pthread_join(thread, NULL);
}

static void *outlive_main(void *argument) {
    usleep(100000);
    serve_every_size(NULL);
    return argument;
}

PROMISE(the_process_ends_with_its_last_thread_when_main_left_early) {
    pthread_t thread;
    alarm(20);
    wake_helper();
    HOLDS(pthread_create(&thread, NULL, outlive_main, NULL) == 0);
    pthread_exit(NULL);
}

PROMISE(the_process_ends_when_main_leaves_alone) {
    alarm(20);
    wake_helper();
    pthread_exit(NULL);
}

PROMISE(the_process_ends_when_main_leaves_after_a_rest) {
    wake_helper();
    sleep(3); /* the helper has nothing to do and sleeps without end */
    alarm(10);
    pthread_exit(NULL);
}

/* The thread that ends last runs the program's exit handlers, which may need a stack as long as any. */
static void need_stack(void) {
    char *volatile much = __builtin_alloca(MIB);
    memset(much, 1, MIB);
}

PROMISE(exit_handlers_have_a_stack_when_main_leaves) {
    alarm(20);
    atexit(need_stack);
    wake_helper();
    pthread_exit(NULL);
}

static void expect_no_signal_blocked(void) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    for (int signal = 1; signal < 32; signal++) HOLDS(!sigismember(&blocked, signal));
}

PROMISE(exit_handlers_may_be_signalled_when_main_leaves) {
    alarm(20);
    atexit(expect_no_signal_blocked);
    wake_helper();
    pthread_exit(NULL);
}

static sigset_t awaited;

/* Has never allocated when all others have left. */
static void *await_signal(void *unused) {
    (void)unused;
    usleep(300000);
    _exit(sigtimedwait(&awaited, NULL, &(struct timespec){1, 0}) == SIGUSR1 ? 0 : 1);
}

PROMISE(a_signal_waits_for_who_will_take_it_though_all_others_left) {
    pthread_t thread;
    alarm(20);
    wake_helper();
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &awaited, NULL);
    HOLDS(pthread_create(&thread, NULL, await_signal, NULL) == 0);
    kill(getpid(), SIGUSR1);
    pthread_exit(NULL);
}

/* Blocks of many sizes come and go, and hold what was written to them, here and in other threads. */
static void *hold_many(void *mark) {
    enum { BLOCKS = 2000, TIMES = 200000 };
    static __thread unsigned char *held[BLOCKS];
    for (unsigned i = 0; i < TIMES; i++) {
        unsigned char **at = &held[i * 7919u % BLOCKS], *was = *at;
        size_t size = 16 + (size_t)(at - held) * 31 % (i % 50 == 0 ? 100000 : 900);
        HOLDS(was == NULL || (was[0] == (uintptr_t)mark && was[15] == (uintptr_t)mark));
        free(was);
        *at = was == NULL ? memset(malloc(size), (int)(uintptr_t)mark, size) : NULL;
    }
    return NULL;
}

static void hold_many_in_threads(void) {
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) HOLDS(pthread_create(&threads[i], NULL, hold_many, (void *)(i + 1)) == 0);
    hold_many((void *)3);
    for (int i = 0; i < 2; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
}

/* The thread that forks is its child's only one, and not the one whose number the parent had. */
static void *fork_when_main_has_left(void *unused) {
    serve_every_size(NULL);
    usleep(200000);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        wake_helper();
        usleep(300000);
        hold_many_in_threads();
        _exit(0);
    }
    wait_for(child);
    return unused;
}

PROMISE(a_child_is_a_full_process_though_main_had_left) {
    pthread_t thread;
    alarm(40);
    HOLDS(pthread_create(&thread, NULL, fork_when_main_has_left, NULL) == 0);
    pthread_exit(NULL);
}

static void *work_and_rest(void *unused) {
    free(malloc(opaque(100)));
    for (;;) pause();
    return unused;
}

/* Its parent's threads are none of its own. */
PROMISE(a_child_ends_with_its_last_thread_when_main_leaves) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) HOLDS(pthread_create(&thread, NULL, work_and_rest, NULL) == 0);
    wake_helper();
    usleep(100000); /* each has a cache by now */
    pid_t child = fork();
    if (child == 0) {
        wake_helper();
        pthread_exit(NULL);
    }
    int status, waited = 0; /* an alarm would be for nobody in a child in which only the helper is left */
    for (; waitpid(child, &status, WNOHANG) == 0 && waited < 20000; waited += 20) usleep(20000);
    if (waited >= 20000) kill(child, SIGKILL);
    HOLDS(waited < 20000 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    _exit(0);
}

/* One that allocates first in its last round of destructors, of which there are four, is told of to nobody. */
static pthread_key_t last_key;

static void allocate_in_last_round(void *rounds) {
    if ((size_t)rounds < 4) pthread_setspecific(last_key, (char *)rounds + 1);
    else free(malloc(opaque(100)));
}

static void *leave_unheard(void *unused) {
    pthread_setspecific(last_key, (void *)1);
    return unused;
}

PROMISE(the_process_ends_though_a_thread_ended_unheard) {
    pthread_t thread;
    alarm(20);
    pthread_key_create(&last_key, allocate_in_last_round);
    wake_helper();
    HOLDS(pthread_create(&thread, NULL, leave_unheard, NULL) == 0);
    pthread_join(thread, NULL);
    pthread_exit(NULL);
}

/* Threads that never allocate: libc frees the tables of old stacks in a thread that is past all its hooks. */
static void *rest(void *microseconds) {
    usleep((unsigned)(size_t)microseconds);
    return NULL;
}

PROMISE(threads_that_end_detached_leave_nothing_behind) {
    enum { ROUNDS = 15, THREADS = 200 };
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    long before = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < THREADS; i++) HOLDS(pthread_create(&thread, &detached, rest, (void *)(100 * i)) == 0);
        usleep(150000);
        if (round == 2) before = resident_bytes();
    }
    HOLDS(resident_bytes() - before < 4 * MIB);
    int (*read_stats)(void *, int) = (int (*)(void *, int))dlsym(RTLD_DEFAULT, "hak_stat_read");
    static char rows[64][256]; /* more than they take; what is read of ended threads must be there */
    if (read_stats) HOLDS(read_stats(rows, 64) > 0);
}

/* A library with so much static thread-local memory leaves little of a small stack. */
static __thread char much[100 * KIB];

PROMISE(the_helper_has_a_stack_beside_thread_local_memory) {
    much[opaque(5)] = 1;
    wake_helper();
    serve_in_threads();
}

PROMISE(exit_does_not_wait_for_the_helper) {
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            wake_helper();
            exit(0);
        }
        wait_for(child);
    }
}

PROMISE(the_helper_rests_where_nothing_is_free_whatever_the_batch) {
    set_knob("purge_batch_bytes", 0);
    set_knob("purge_delay_ms", 0);
    wake_helper();
    sleep(1);
    unsigned long before = of_other_threads(switches);
    sleep(1);
    HOLDS(of_other_threads(switches) - before < 50); /* who never rests is there a thousand times */
}
