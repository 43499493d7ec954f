/* Promise 8: where the system gives no more threads, a helper that cannot start does no harm. This program's own
 * pthread_create stands before libc's and always refuses. */
#include "../serve.h"

static int refusals;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    (void)thread, (void)attributes, (void)run, (void)argument;
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
