/* What the library says of itself is true however it serves, and is told to nobody but stderr. */
#include "../library.h"
#include "../serve.h"

enum { COUNT = 1000 };

PROMISE(blocks_with_callers_are_counted) {
    static char *blocks[COUNT];
    int64_t before = counter("live_blocks");
    for (int i = 0; i < COUNT; i++) blocks[i] = malloc(208);
    HOLDS(counter("live_blocks") - before == COUNT);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    HOLDS(counter("live_blocks") - before < COUNT / 2); /* some may be in quarantine */
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
