/* What the library says of itself is true however it serves, and is told to nobody but stderr. */
#include "../library.h"
#include "../serve.h"
#include <malloc.h>
#include <pthread.h>

enum { COUNT = 1000 };

PROMISE(blocks_with_callers_are_counted) {
    static char *blocks[COUNT];
    int64_t before = counter("live_blocks");
    for (int i = 0; i < COUNT; i++) blocks[i] = malloc(208);
    HOLDS(counter("live_blocks") - before == COUNT);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    HOLDS(counter("live_blocks") - before < COUNT / 2); /* some may be in quarantine */
}

static _Atomic int told_enough;

static void *grow_and_free_giants(void *unused) {
    while (!told_enough) free(realloc(realloc(realloc(malloc(100 * KIB), 2 * MIB), 40 * MIB), 100 * MIB));
    return unused;
}

/* However often they are read while pages go back: less is in use than is committed, so no share is above 1. */
PROMISE(no_more_is_in_use_than_is_committed) {
    int (*read_stats)(hak_stat_t *, int) = (int (*)(hak_stat_t *, int))library("hak_stat_read");
    static hak_stat_t rows[64];
    pthread_t thread;
    set_knob("background", 0); /* pages go at once */
    HOLDS(pthread_create(&thread, NULL, grow_and_free_giants, NULL) == 0);
    for (int reads = 0; reads < 100000; reads++) {
        uint64_t in_use = 0, committed = 0;
        for (int i = read_stats(rows, 64) - 1; i >= 0; i--) {
            if (strcmp(rows[i].name, "in_use_bytes") == 0) in_use = rows[i].value;
            if (strcmp(rows[i].name, "committed_bytes") == 0) committed = rows[i].value;
        }
        HOLDS(in_use <= committed);
    }
    told_enough = 1;
    pthread_join(thread, NULL);
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

PROMISE(a_trim_reaches_the_heap_that_serves) {
    enum { BLOCKS = 32 * KIB };
    static char *volatile blocks[BLOCKS];
    long had = resident_bytes();
    for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(KIB), 1, KIB);
    char *volatile last = malloc(5 * KIB); /* libc gives back of itself what lies at the end */
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    malloc_trim(0);
    HOLDS(resident_bytes() < had + 8 * MIB);
    free(last);
}

STEP(it_says_what_is_in_force) {
    int (*read_knob)(int, hak_knob_t *) = (int (*)(int, hak_knob_t *))library("hak_knob_read");
    const char *(*profile)(void) = (const char *(*)(void))library("hak_profile");
    hak_knob_t knob;
    puts(profile());
    for (int row = 0; read_knob(row, &knob) == 0; row++) printf("%s %ld\n", knob.name, (long)knob.value);
}

/* Lists tell how long they are, and write no further than there is room. */
PROMISE(no_list_is_longer_than_the_room_for_it) {
    enum { ROOM = 3, MARK = 0x5a };
    static union {
        hak_stat_t stats[ROOM + 1];
        hak_span_t spans[ROOM + 1];
        hak_magazine_t magazines[ROOM + 1];
        hak_site_t sites[ROOM + 1];
        unsigned char bytes[(ROOM + 1) * (sizeof(hak_stat_t) + sizeof(hak_span_t) + sizeof(hak_magazine_t))];
    } rows;
    static const struct {
        const char *name;
        size_t row;
    } lists[] = {{"hak_stat_read", sizeof *rows.stats},
                 {"hak_heap_walk", sizeof *rows.spans},
                 {"hak_magazine_walk", sizeof *rows.magazines},
                 {"hak_site_read", sizeof *rows.sites}};
    int (*set)(uint64_t, int) = (int (*)(uint64_t, int))library("hak_site_set");
    for (uint64_t address = 1; address <= 100; address++) set(address, HAK_SITE_RUN);
    for (size_t size = 1; size < 100000; size += size / 4 + 1) free(malloc(size));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (size_t room = 0; room <= ROOM; room++) {
            memset(&rows, MARK, sizeof rows);
            size_t seen = i == 0 ? (size_t)((int (*)(hak_stat_t *, int))library(lists[i].name))(rows.stats, (int)room)
                                 : ((size_t(*)(void *, size_t))library(lists[i].name))(&rows, room);
            HOLDS(i == 0 ? seen == room : seen > ROOM);
            for (size_t at = room * lists[i].row; at < sizeof rows; at++) HOLDS(rows.bytes[at] == MARK);
        }
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
