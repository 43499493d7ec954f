/* Promise 8: where the system gives no more threads, a helper that cannot start does no harm. This program's own
 * pthread_create stands before libc's and refuses, for ever or for a while. */
#include "../serve.h"
#include <dlfcn.h>

static _Atomic int refusals, refusing = 1;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    if (!refusing)
        return ((int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(
            RTLD_NEXT, "pthread_create"))(thread, attributes, run, argument);
    refusals++;
    return EAGAIN;
}

PROMISE(a_helper_that_cannot_start_does_no_harm) {
    enum { BLOCKS = 20000 };
    static char *blocks[BLOCKS];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(8 * KIB), 1, 8 * KIB);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
        serve_every_size(NULL);
    }
    HOLDS(refusals <= 5); /* and it does not try for ever */
}

/* Then a peak goes back, though nobody calls. */
PROMISE(a_helper_that_could_not_start_starts_when_it_can) {
    enum { COUNT = 200, SIZE = 600000 };
    static char *peak[COUNT];
    for (int round = 0; round < 2; round++, refusing = 0, sleep(2)) {
        for (int i = 0; i < COUNT; i++) memset(peak[i] = malloc(SIZE), 1, SIZE);
        for (int i = 0; i < COUNT; i++) free(peak[i]);
    }
    if (refusals == 0) UNTRIED("this allocator starts no thread");
    for (int i = 0; i < COUNT; i++) memset(peak[i] = malloc(SIZE), 1, SIZE);
    for (int i = 0; i < COUNT; i++) free(peak[i]);
    sleep(3);
    HOLDS(resident_bytes() < (long)COUNT * SIZE / 10);
}
