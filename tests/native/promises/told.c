/* What the library says of itself is true however it serves, and is told to nobody but stderr. */
#include "../library.h"
#include "../serve.h"
#include <malloc.h>

enum { COUNT = 1000 };

PROMISE(blocks_with_callers_are_counted) {
    static char *blocks[COUNT];
    int64_t before = counter("live_blocks");
    for (int i = 0; i < COUNT; i++) blocks[i] = malloc(208);
    HOLDS(counter("live_blocks") - before == COUNT);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    HOLDS(counter("live_blocks") - before < COUNT / 2); /* some may be in quarantine */
}

PROMISE(it_is_libcs_heap_that_grows_where_libc_was_asked_for) {
    enum { BYTES = 4 * MIB };
    int64_t library_had = counter("in_use_bytes");
    int libc_had = mallinfo().uordblks;
    for (int i = 0; i < BYTES / KIB; i++) memset(malloc(KIB), 1, KIB);
    int64_t library_has = counter("in_use_bytes") - library_had;
    int libc_has = mallinfo().uordblks - libc_had;
    if (getenv("HAKMEM_FORCE_LIBC_ALLOC")) HOLDS(libc_has >= BYTES && library_has == 0);
    else HOLDS(libc_has == 0 && library_has > BYTES / 2);
}

STEP(it_says_what_is_in_force) {
    int (*read_knob)(int, hak_knob_t *) = (int (*)(int, hak_knob_t *))library("hak_knob_read");
    const char *(*profile)(void) = (const char *(*)(void))library("hak_profile");
    hak_knob_t knob;
    puts(profile());
    for (int row = 0; read_knob(row, &knob) == 0; row++) printf("%s %ld\n", knob.name, (long)knob.value);
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

/* Among runs of all lengths most holes do not serve an aligned block, but some do. */
PROMISE(aligned_blocks_find_the_holes_that_others_left) {
    enum { ALIGNED = 100, OTHERS = 1000, ROUNDS = 25000, ALIGNMENT = 16 * MIB };
    static void *aligned[ALIGNED], *others[OTHERS];
    int64_t reserved = 0;
    unsigned random = 1;
    for (int round = 0; round < 8 * ROUNDS; round++) {
        random = random * 1103515245 + 12345;
        unsigned a = (random >> 8) % ALIGNED, b = (random >> 12) % OTHERS;
        free(aligned[a]);
        HOLDS(posix_memalign(&aligned[a], ALIGNMENT, 100000 + (random >> 5) % 200000) == 0);
        free(others[b]);
        HOLDS((others[b] = malloc(33000 + (random >> 3) % 3000000)) != NULL);
        if (round == ROUNDS) reserved = counter("reserved_bytes");
    }
    HOLDS(counter("reserved_bytes") <= reserved + reserved / 2);
}
