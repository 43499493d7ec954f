/* Promise 1: a program that is already running, with threads and little static TLS left, can load the library. LIBRARY
 * names it; the loader puts its malloc beside libc's, and both serve. */
#include "../serve.h"
#include <dlfcn.h>

static void *(*their_malloc)(size_t);
static void *(*their_realloc)(void *, size_t);
static void (*their_free)(void *);
static pthread_barrier_t loaded;

static void *use_both(void *argument) {
    free(malloc(100));
    pthread_barrier_wait(&loaded);
    for (size_t size = 1; size < 4 * MIB; size = size * 2 + 1) {
        char *theirs = their_malloc(size), *ours = malloc(size);
        HOLDS(theirs != NULL && ours != NULL && theirs != ours);
        memset(theirs, 1, size);
        memset(ours, 2, size);
        HOLDS((theirs = their_realloc(theirs, 2 * size)) != NULL && theirs[size - 1] == 1);
        their_free(theirs);
        free(ours);
    }
    return argument;
}

static void *use_theirs(void *take) {
    memset(((void *(*)(size_t))take)(100), 1, 100);
    usleep(300000); /* beyond the end of the library */
    return NULL;
}

PROMISE(a_running_program_can_close_the_library) {
    enum { BLOCKS = 20000 };
    static char *blocks[BLOCKS];
    const char *library = getenv("LIBRARY");
    if (library == NULL) UNTRIED("LIBRARY names no library");
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    HOLDS(handle != NULL);
    void *(*take)(size_t) = (void *(*)(size_t))dlsym(handle, "malloc");
    void (*give)(void *) = (void (*)(void *))dlsym(handle, "free");
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = take(4000), 1, 4000);
        for (int i = 0; i < BLOCKS; i++) give(blocks[i]);
    }
    pthread_t thread;
    pthread_create(&thread, NULL, use_theirs, (void *)take);
    usleep(100000);
    HOLDS(dlclose(handle) == 0);
    pthread_join(thread, NULL);
    pid_t child = fork();
    if (child == 0) exit(0);
    wait_for(child);
    usleep(700000);
}

/* LIBRARY is a copy of the one that serves this program. */
STEP(a_second_copy_knows_its_own_blocks) {
    void *handle = dlopen(getenv("LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    HOLDS(handle != NULL);
    void *(*take)(size_t) = (void *(*)(size_t))dlsym(handle, "malloc");
    void *(*grow)(void *, size_t) = (void *(*)(void *, size_t))dlsym(handle, "realloc");
    void *(*zeroed)(size_t, size_t) = (void *(*)(size_t, size_t))dlsym(handle, "calloc");
    void (*give)(void *) = (void (*)(void *))dlsym(handle, "free");
    give(grow(take(100), 1000));
    give(zeroed(1, 100));
    give(zeroed(1, 100000));
}

PROMISE(a_running_program_can_load_the_library) {
    const char *library = getenv("LIBRARY");
    if (library == NULL) UNTRIED("LIBRARY names no library");
    pthread_t threads[4];
    pthread_barrier_init(&loaded, NULL, 5);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, use_both, NULL);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) dprintf(2, "%s\n", dlerror());
    HOLDS(handle != NULL);
    their_malloc = (void *(*)(size_t))dlsym(handle, "malloc");
    their_realloc = (void *(*)(void *, size_t))dlsym(handle, "realloc");
    their_free = (void (*)(void *))dlsym(handle, "free");
    pthread_barrier_wait(&loaded);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            their_free(their_malloc(1000));
            exit(0);
        }
        wait_for(child);
    }
}

/* Even where the library prefers its own names, the program's calls remain libc's. */
PROMISE(a_late_library_takes_no_calls) {
    const char *library = getenv("LIBRARY");
    if (library == NULL) UNTRIED("LIBRARY names no library");
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    HOLDS(handle != NULL);
    size_t (*usable)(void *) = (size_t (*)(void *))dlsym(handle, "malloc_usable_size");
    void *block = malloc(1000);
    HOLDS(malloc_usable_size(block) % 16 == 8); /* libc's; the library's sizes are multiples of 16 */
    HOLDS(usable(((void *(*)(size_t))dlsym(handle, "malloc"))(1000)) % 16 == 0);
    free(block);
}

static void ask_for_much(void) {
    static void *runs[400];
    if (their_malloc == NULL) return;
    for (int i = 0; i < 400; i++) runs[i] = their_malloc(700000);
    for (int i = 0; i < 400; i++) their_free(runs[i]);
}

static _Atomic int keeps;

static void *keep_much(void *unused) {
    static void *runs[100];
    for (int round = 0; round < 6; round++, usleep(150000)) {
        for (int i = 0; i < 100; i++) memset(runs[i] = their_malloc(600000), 1, 600000);
        for (int i = 0; i < 100; i++) their_free(runs[i]);
    }
    keeps = 1;
    for (;; usleep(10000)) their_free(their_malloc(600000));
    return unused;
}

static void *load_theirs(const char *library) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    HOLDS(handle != NULL);
    their_free = (void (*)(void *))dlsym(handle, "free");
    their_malloc = (void *(*)(size_t))dlsym(handle, "malloc");
    return handle;
}

/* A handler that was there before the library runs while that holds its locks. */
PROMISE(an_earlier_handler_of_fork_may_ask_for_memory) {
    const char *library = getenv("LIBRARY");
    if (library == NULL) UNTRIED("LIBRARY names no library");
    pthread_atfork(ask_for_much, NULL, NULL);
    void *handle = load_theirs(library);
    int (*trim)(size_t) = (int (*)(size_t))dlsym(handle, "malloc_trim");
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, keep_much, NULL) == 0);
    while (!keeps) usleep(1000);
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        HOLDS(child >= 0);
        alarm(20);
        trim(0);
        if (child == 0) _exit(0);
        wait_for(child);
    }
}

static _Thread_local int forks_now;

static void ask_for_a_little(void) {
    if (forks_now) their_malloc(100);
}

static void ask_for_more(void) {
    static void *blocks[40000];
    for (int i = 0; i < 40000; i++) HOLDS((blocks[i] = their_malloc(100)) != NULL);
    for (int i = 0; i < 40000; i++) their_free(blocks[i]);
}

static void *fork_first(void *unused) {
    forks_now = 1;
    pid_t child = fork();
    forks_now = 0;
    alarm(20);
    ask_for_more();
    if (child == 0) _exit(0);
    wait_for(child);
    return unused;
}

/* The thread has no heap before, and its handler asks for one in a part of its own. */
PROMISE(a_thread_that_forks_before_it_allocates_may_have_an_earlier_handler) {
    const char *library = getenv("LIBRARY");
    if (library == NULL) UNTRIED("LIBRARY names no library");
    pthread_atfork(ask_for_a_little, NULL, NULL);
    load_theirs(library);
    their_free(their_malloc(10));
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, fork_first, NULL) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);
}
