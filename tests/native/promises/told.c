/* What the library says of itself is true however it serves, and is told to nobody but stderr. */
#include "../serve.h"
#include "../../../native/include/hakmem.h"
#include <dlfcn.h>

enum { COUNT = 1000 };

static int64_t live_blocks(void) {
    int (*read_stats)(hak_stat_t *, int) = (int (*)(hak_stat_t *, int))dlsym(RTLD_DEFAULT, "hak_stat_read");
    static hak_stat_t rows[64];
    if (read_stats == NULL) UNTRIED("this allocator has no counters");
    for (int i = read_stats(rows, 64) - 1; i >= 0; i--)
        if (strcmp(rows[i].name, "live_blocks") == 0) return (int64_t)rows[i].value;
    HOLDS(!"no such counter");
    return 0;
}

PROMISE(blocks_with_callers_are_counted) {
    static char *blocks[COUNT];
    int64_t before = live_blocks();
    for (int i = 0; i < COUNT; i++) blocks[i] = malloc(208);
    HOLDS(live_blocks() - before == COUNT);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    HOLDS(live_blocks() - before < COUNT / 2); /* some may be in quarantine */
}

/* A program may close every descriptor and open files under the same numbers. */
PROMISE(no_file_of_the_programs_is_written_to) {
    enum { FILES = 300 };
    FILE *file = tmpfile();
    int names[FILES], original = dup(fileno(file));
    HOLDS(original >= 0);
    for (int i = 3; i < FILES; i++)
        if (i != original) close(i);
    for (int i = 0; i < FILES; i++) HOLDS((names[i] = dup(original)) >= 0);
    pid_t child = fork();
    if (child == 0) exit(0); /* as a program ends: then the library speaks, if it was asked to */
    wait_for(child);
    HOLDS(lseek(original, 0, SEEK_END) == 0);
}
