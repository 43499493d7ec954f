/* The words in which the native tests are written:
 *
 *     PROMISE(free_keeps_errno) { ... HOLDS(errno == 4711); ... }
 *
 * A program is a list of promises: `program` prints their names, `program NAME` tries one.
 * Exit 0: kept. 1: broken, with the false predicate on stderr. 77: cannot be tried on this machine. 2: no such name.
 * A predicate may be tested in any thread and in any forked child: the first false one ends the process. */
#ifndef PROMISE_H
#define PROMISE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMISES_MAX = 64, EXIT_BROKEN = 1, EXIT_UNTRIED = 77 };

static struct promise {
    const char *name;
    void (*try_it)(void);
} promises[PROMISES_MAX];
static int promise_count;
static const char *promise_name;

#define PROMISE(title)                                                                                       \
    static void title(void);                                                                                 \
    __attribute__((constructor)) static void title##_listed(void) {                                          \
        if (promise_count == PROMISES_MAX) abort();                                                          \
        promises[promise_count].name = #title;                                                               \
        promises[promise_count++].try_it = title;                                                            \
    }                                                                                                        \
    static void title(void)

/* A part of a promise that needs a process of its own, started by the promise. */
#define STEP(title) PROMISE(title)

#define HOLDS(predicate)                                                                                     \
    do {                                                                                                     \
        if (!(predicate)) promise_end(EXIT_BROKEN, #predicate, __LINE__);                                    \
    } while (0)

#define UNTRIED(reason) promise_end(EXIT_UNTRIED, reason, __LINE__)

/* dprintf and _exit: no stream, lock or atexit handler may stand between a broken promise and its report. */
__attribute__((noreturn)) static inline void promise_end(int status, const char *text, int line) {
    dprintf(2, "%s: %s: line %d: %s\n", promise_name, status == EXIT_BROKEN ? "does not hold" : "untried", line,
            text);
    _exit(status);
}

/* A value the compiler knows nothing about, so that no call is folded or warned away. */
static inline size_t opaque(size_t value) {
    __asm__ volatile("" : "+r"(value));
    return value;
}

int main(int argc, char **argv) {
    for (int i = 0; i < promise_count; i++) {
        if (argc < 2) puts(promises[i].name);
        if (argc < 2 || strcmp(argv[1], promises[i].name) != 0) continue;
        promise_name = promises[i].name;
        promises[i].try_it();
        return 0;
    }
    return argc < 2 ? 0 : 2;
}
#endif
