/* Promise 10, where memory is locked: the kernel takes no locked page, and keeps with it the rest of what it was asked to
 * take. */
#include "../library.h"
#include "../peak.h"
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

PROMISE(a_locked_page_among_free_blocks_is_nobodys_concern) {
    enum { SIZE = 4 * KIB, COUNT = 64, STAYS = 16, LOCKED = 9 };
    for (size_t i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (size_t i = LOCKED; i < COUNT; i += STAYS)
        if (mlock(blocks[i], SIZE) != 0) UNTRIED("no memory may be locked here");
    for (size_t i = 0; i < COUNT; i++)
        if (i % STAYS != 0) free(blocks[i]);
    malloc_trim(0);
    for (size_t i = 0; i < COUNT; i++)
        if (i % STAYS != 0) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
}

/* Nor is one in the middle of them all, for those that are freed later. */
PROMISE(a_peak_goes_back_around_a_locked_page) {
    enum { SIZE = 1 * MIB, LOCKED = PEAK / SIZE / 6 };
    for (size_t i = 0; i < PEAK / SIZE / 3; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    if (mlock(blocks[LOCKED] + 64 * KIB, 4 * KIB) != 0) UNTRIED("no memory may be locked here");
    for (size_t i = 0; i < PEAK / SIZE / 3; i++) free(blocks[i]);
    malloc_trim(0);
    long before = resident_bytes();
    HOLDS(before < PEAK / 10);
    peak_of(SIZE);
    expect_given_back(before);
}

/* Nor one that was locked when it was freed, alone among small ones: what is freed later goes back. */
PROMISE(peaks_go_back_after_locked_memory_was_freed) {
    enum { KEY = 20 * KIB };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    char *key = memset(malloc(KEY), 1, KEY);
    if (mlock(key, KEY) != 0) UNTRIED("no memory may be locked here");
    free(key);
    for (int peaks = 0; peaks < 3; peaks++) {
        peak_of(20 * 1000);
        expect_given_back(before);
        usleep(1000000); /* what is left is asked for, and refused */
    }
}

/* However many small ones are locked when the rest is looked at. */
PROMISE(large_blocks_go_back_beside_many_locked_small_ones) {
    enum { SMALL = 128, COUNT = 60000, ROWS = 100, SIZE = 1 * MIB };
    static char *small[COUNT];
    uintptr_t row = 0;
    int rows = 0;
    for (size_t i = 0; i < COUNT; i++) memset(small[i] = malloc(SMALL), 1, SMALL);
    for (size_t i = 0; i < PEAK / SIZE; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (size_t i = 0; i < COUNT; i++) { /* the first one of each row stays, and its neighbours' pages */
        if ((uintptr_t)small[i] / (64 * KIB) == row) continue;
        row = (uintptr_t)small[i] / (64 * KIB);
        if (rows++ < ROWS && mlock((void *)(row * 64 * KIB), 64 * KIB) != 0) UNTRIED("no memory may be locked here");
        small[i] = NULL;
    }
    for (size_t i = 0; i < COUNT; i++) free(small[i]);
    usleep(300000);
    for (size_t i = 0; i < PEAK / SIZE; i++) free(blocks[i]);
    expect_given_back(0);
}

static void *free_locked_blocks(void *unlocked) {
    enum { COUNT = 60, SIZE = 100 * 1000 };
    static char *locked[COUNT];
    for (int i = 0; i < COUNT; i++) {
        memset(locked[i] = malloc(SIZE), 1, SIZE);
        memset(malloc(SIZE), 1, SIZE); /* stays between them */
        if (mlock(locked[i], SIZE) != 0) *(bool *)unlocked = true;
    }
    for (int i = 0; i < COUNT; i++) free(locked[i]);
    return unlocked;
}

/* What was freed a moment before the kernel refused everything else is asked for when its time has come. */
PROMISE(a_peak_goes_back_though_all_that_was_asked_for_before_was_locked) {
    enum { SIZE = 300 * KIB };
    bool unlocked = false;
    pthread_t thread;
    for (size_t i = 0; i < PEAK / SIZE; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    HOLDS(pthread_create(&thread, NULL, free_locked_blocks, &unlocked) == 0);
    pthread_join(thread, NULL);
    if (unlocked) UNTRIED("no memory may be locked here");
    usleep(1500000);
    for (size_t i = 0; i < PEAK / SIZE; i++) free(blocks[i]);
    expect_given_back(0);
}

/* However often it was asked for in vain: it goes back when it can. */
PROMISE(what_was_locked_goes_back_when_it_is_not_any_more) {
    enum { SIZE = 300 * KIB, COUNT = 40 * MIB / SIZE };
    long before = resident_bytes();
    for (size_t i = 0; i < COUNT; i++) {
        memset(blocks[i] = malloc(SIZE), 1, SIZE);
        if (mlock(blocks[i], SIZE) != 0) UNTRIED("no memory may be locked here");
    }
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
    for (int i = 0; i < 12; i++) malloc_trim(0);
    usleep(700000);
    munlockall();
    expect_at_most(before + COUNT * SIZE / 4);
}

/* The same of small ones, between others that stay; and what the kernel refused is not said to have gone back. */
PROMISE(small_blocks_that_were_locked_go_back_when_they_are_not_any_more) {
    enum { SIZE = 1000, COUNT = 40 * MIB / SIZE, STAYS = 1000 };
    library("hak_purge"); /* others may say so of a little that is always left */
    set_knob("background", 0);
    for (size_t i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    if (mlockall(MCL_CURRENT) != 0) UNTRIED("no memory may be locked here");
    for (size_t i = 0; i < COUNT; i++)
        if (i % STAYS != 0) free(blocks[i]);
    malloc_trim(0);
    HOLDS(malloc_trim(0) == 0);
    long locked = resident_bytes();
    munlockall();
    HOLDS(malloc_trim(0) == 1 && resident_bytes() < locked - COUNT * SIZE / 4 * 3);
}

/* A block that was locked when it shrank, and is not any more when it is freed. */
PROMISE(a_window_goes_back_that_was_locked_for_a_while) {
    enum { MOST = 40 * MIB, LEFT = 1 * MIB };
    long before = resident_bytes();
    size_t size = 100 * KIB;
    char *block = malloc(size);
    for (; size < MOST; memset(block, 1, size)) block = realloc(block, size = size * 3 / 2);
    if (mlock(block, size) != 0) UNTRIED("no memory may be locked here");
    block = realloc(block, LEFT);
    usleep(2500000); /* the rest is asked for, and refused */
    munlock(block, size);
    free(block);
    expect_at_most(before + MOST / 10);
}

/* One page of a long block that grew: the others go back. */
PROMISE(a_long_block_that_grew_goes_back_around_a_locked_page) {
    enum { MOST = 100 * MIB };
    long before = resident_bytes();
    size_t size = 100 * KIB;
    char *block = malloc(size);
    for (; size < MOST; memset(block, 1, size)) block = realloc(block, size = size * 3 / 2);
    if (mlock(block + size / 2, 4 * KIB) != 0) UNTRIED("no memory may be locked here");
    free(block);
    expect_at_most(before + MOST / 10);
}

/* In each 2 MiB a block that stays and a free one that is locked: the rest goes back. */
PROMISE(small_blocks_go_back_beside_locked_ones) {
    enum { SIZE = 8000, COUNT = 25600, REGION = 2 * MIB, REGIONS = 1024 };
    static unsigned seen[REGIONS];
    for (size_t i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (size_t i = 0; i < COUNT; i++) {
        unsigned *region = &seen[(uintptr_t)blocks[i] / REGION % REGIONS];
        if (*region == 0 && mlock(blocks[i], SIZE) != 0) UNTRIED("no memory may be locked here");
        if ((*region)++ != 200) free(blocks[i]);
    }
    expect_at_most(COUNT * SIZE / 8);
}

/* What the kernel kept is not taken for what it cleared. */
PROMISE(what_was_locked_when_it_was_given_back_reads_zero_where_it_must) {
    enum { LONG = 30 * MIB, LEFT = 10 * MIB, SIZE = 1 * MIB, COUNT = 120 };
    static const char zeros[SIZE];
    for (int grows = 1; grows >= 0; grows--) {
        char *block = grows ? realloc(realloc(malloc(40 * KIB), 2 * MIB), LONG) : malloc(LONG);
        if (mlock(memset(block, 0xff, LONG), LONG) != 0) UNTRIED("no memory may be locked here");
        char *left = grows ? NULL : realloc(block, LEFT);
        if (grows) free(block);
        malloc_trim(0);
        munlock(block, LONG);
        for (size_t i = 0; i < COUNT; i++) HOLDS(memcmp(blocks[i] = calloc(1, SIZE), zeros, SIZE) == 0);
        for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
        free(left);
    }
}

/* Where all is locked what is mapped is resident, so no more is mapped than is needed. */
PROMISE(locked_memory_is_no_more_than_is_used) {
    enum { COUNT = 20, SIZE = 300 * KIB };
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) UNTRIED("no memory may be locked here");
    for (int i = 0; i < 2 * COUNT; i++) blocks[i] = malloc(40 * KIB);
    for (int i = 0; i < COUNT; i++) blocks[2 * i] = realloc(realloc(blocks[2 * i], 100 * KIB), SIZE);
    HOLDS(resident_bytes() < 100 * MIB);
}

/* Address space in which blocks grow is not filled. */
PROMISE(a_lock_of_all_memory_fills_no_room_to_grow) {
    blocks[0] = NULL;
    for (size_t size = 25 * MIB; size <= 100 * MIB; size *= 2) HOLDS((blocks[0] = realloc(blocks[0], size)) != NULL);
    if (mlockall(MCL_CURRENT) != 0) UNTRIED("no memory may be locked here");
    HOLDS(resident_bytes() < 500 * MIB);
}
