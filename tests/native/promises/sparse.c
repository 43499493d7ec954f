/* Promise 10, while a program goes on: blocks that come and go do not hold all the memory that there was at a peak. */
#include "../library.h"
#include "../serve.h"
#include <stdint.h>

enum { COUNT = 300000 };
static char *blocks[COUNT];

/* Bytes of slabs in which there are blocks. */
static size_t slab_bytes(void) {
    size_t (*walk)(hak_span_t *, size_t) = (size_t (*)(hak_span_t *, size_t))library("hak_heap_walk");
    static hak_span_t spans[1 << 16];
    size_t bytes = 0;
    for (size_t i = walk(spans, 1 << 16); i-- > 0;)
        if (spans[i].kind == HAK_SPAN_SLAB) bytes += spans[i].size;
    return bytes;
}

static char *filled(size_t size) { return memset(malloc(size), 1, size); }

/* A queue of which the oldest are freed and three for four of them come anew, until one of sixteen is left. Long blocks
 * are half as many, so that a peak takes no more than 500 MB. */
static void *decline(void *size) {
    size_t count = (size_t)size > 2000 ? COUNT / 2 : COUNT, head = count, tail = 0, left = count;
    for (size_t i = 0; i < count; i++) blocks[i] = filled((size_t)size);
    size_t peak = slab_bytes();
    while (left > count / 16) {
        free(blocks[tail++ % COUNT]);
        if (next_random() % 4 != 0) blocks[head++ % COUNT] = filled((size_t)size);
        else left--;
    }
    HOLDS(slab_bytes() < peak / 4);
    while (left-- > 0) free(blocks[tail++ % COUNT]);
    return NULL;
}

PROMISE(a_class_in_decline_lets_its_slabs_go) { decline((void *)(uintptr_t)64); }
PROMISE(a_class_of_long_blocks_in_decline_lets_its_slabs_go) { decline((void *)(uintptr_t)1500); }

/* Blocks that came and went in ever longer rows got the thread longer magazines. */
static void sway(size_t size) {
    enum { LEAST = 14, MOST = 140, TIMES = 200 };
    for (int row = LEAST; row < MOST; row += 4)
        for (int i = 0; i < TIMES * row; i++)
            if (i / row % 2 == 0) blocks[i % row] = malloc(size);
            else free(blocks[i % row]);
}

PROMISE(a_class_that_swayed_lets_its_slabs_go_in_decline) {
    for (size_t size = 1500; size <= 3000; size *= 2) {
        sway(size);
        decline((void *)(uintptr_t)size);
    }
}

/* Long blocks that come and go draw memory all the time, and each class is seldom used: what a thread has of one does
 * not go home again and again. */
PROMISE(a_program_of_many_sizes_keeps_its_slabs) {
    enum { SLOTS = 64, TIMES = 200000 };
    int64_t taken = 0;
    for (int i = 0; i < 3 * TIMES; i++) {
        if (i == TIMES) taken = counter("slabs_taken");
        char **block = &blocks[next_random() % SLOTS];
        size_t size = (size_t)16 << next_random() % 16;
        size += next_random() % size;
        free(*block);
        *block = malloc(size);
        **block = (*block)[size - 1] = 1;
    }
    HOLDS(counter("slabs_taken") - taken < TIMES / 100);
}

PROMISE(a_class_in_decline_lets_its_slabs_go_beside_another_threads) {
    filled(64);
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, decline, (void *)(uintptr_t)200) == 0);
    for (int i = 0; i < 1000000; i++) free(filled(200));
    HOLDS(pthread_join(thread, NULL) == 0);
}

/* After a peak a third of the blocks stays, and each of those is replaced at some time: they come to lie together. */
PROMISE(what_a_peak_left_comes_together_as_it_is_replaced) {
    enum { MANY = COUNT / 5, STAY = MANY / 3, LONGEST = 4000, TURNS = 20 };
    for (size_t i = 0; i < MANY; i++) blocks[i] = filled(1 + next_random() % LONGEST);
    size_t peak = slab_bytes();
    for (size_t left = MANY; left > STAY; left--) {
        size_t at = next_random() % left;
        free(blocks[at]);
        blocks[at] = blocks[left - 1];
    }
    for (size_t i = 0; i < TURNS * STAY; i++) {
        size_t at = next_random() % STAY;
        free(blocks[at]);
        blocks[at] = filled(1 + next_random() % LONGEST);
    }
    HOLDS(slab_bytes() < peak * 2 / 3);
}

/* Blocks that wait to go home are free: one that is freed again is noticed, and what is taken was not taken before. */
PROMISE(no_block_is_handed_out_twice_while_a_class_declines) {
    enum { SIZE = 48 };
    size_t live = COUNT;
    int64_t others = counter("live_blocks");
    for (size_t i = 0; i < COUNT; i++) *(size_t *)(blocks[i] = filled(SIZE)) = i;
    for (size_t i = 0; live > 1000; i++) {
        size_t at = next_random() % live;
        HOLDS(*(size_t *)blocks[at] == at);
        free(blocks[at]);
        if (i % 8 < 5) *(size_t *)(blocks[at] = filled(SIZE)) = at;
        else if (--live != at) *(size_t *)(blocks[at] = blocks[live]) = at;
    }
    for (size_t i = 0; i < live; i++) HOLDS(*(size_t *)blocks[i] == i);
    int64_t counted = counter("live_blocks") - others; /* the helper's thread may have come, with a block of libc's */
    HOLDS(counted >= (int64_t)live && counted < (int64_t)live + 10);
}

/* Short blocks go, but for one here and there, and long ones come at once: these do not add to the memory of those. */
PROMISE(long_blocks_take_the_memory_of_short_ones) {
    enum { SIZE = 1000, LONG = 300 * KIB, BYTES = 100 * MIB, STAYS = 1000 };
    long before = resident_bytes();
    for (size_t i = 0; i < BYTES / SIZE; i++) blocks[i] = filled(SIZE);
    for (size_t i = 0; i < BYTES / SIZE; i++)
        if (i % STAYS != 0) free(blocks[i]);
    for (size_t i = 0; i < BYTES / LONG; i++) filled(LONG);
    HOLDS(resident_bytes() - before < BYTES * 5L / 4);
}

/* Where slabs are dense once more, and what is free is what magazines hold, blocks do not go home again and again. */
PROMISE(long_blocks_that_come_and_go_seldom_go_home) {
    enum { MANY = 3000, STAY = MANY / 2, SHORTEST = 8192, LONGEST = 32768, TURNS = 100000 };
    for (size_t i = 0; i < MANY; i++) blocks[i] = malloc(SHORTEST + next_random() % (LONGEST - SHORTEST));
    for (size_t i = STAY; i < MANY; i++) free(blocks[i]);
    int64_t before = 0;
    for (size_t i = 0; i < 2 * TURNS; i++) {
        if (i == TURNS) before = counter("returned_blocks");
        size_t at = next_random() % STAY;
        free(blocks[at]);
        blocks[at] = malloc(SHORTEST + next_random() % (LONGEST - SHORTEST));
    }
    HOLDS(counter("returned_blocks") - before < TURNS / 16);
    for (size_t i = 0; i < STAY; i++) free(blocks[i]);
}

/* Where blocks come and go by chance, a thread has as many free ones as a magazine holds for long whiles. Then it does
 * not exchange magazines call by call, as one with more room holds them all. */
PROMISE(long_blocks_that_come_and_go_seldom_cost_an_exchange) {
    enum { MANY = 60, SHORTEST = 4096, STEP = 512, SIZES = 8, TURNS = 100000 };
    int64_t before = 0;
    for (size_t i = 0; i < 2 * TURNS; i++) {
        if (i == TURNS) before = counter("refills");
        size_t at = next_random() % MANY;
        free(blocks[at]);
        blocks[at] = malloc(SHORTEST + next_random() % SIZES * STEP);
    }
    HOLDS(counter("refills") - before < TURNS / 1000);
    for (size_t i = 0; i < MANY; i++) free(blocks[i]);
}

/* As many blocks of a class as two of the longest magazines hold, taken and freed by turns, mostly stay with the thread,
 * though they are longer than those for which the usual ones are made. */
PROMISE(blocks_taken_and_freed_by_the_thousand_seldom_cost_an_exchange) {
    enum { MANY = 1000, TURNS = 300 };
    for (size_t size = 250; size <= 1000; size *= 2) {
        int64_t before = 0;
        for (size_t turn = 0; turn < 2 * TURNS; turn++) {
            if (turn == TURNS) before = counter("refills");
            for (size_t i = 0; i < MANY; i++) blocks[i] = malloc(size);
            for (size_t i = 0; i < MANY; i++) free(blocks[i]);
        }
        HOLDS(counter("refills") - before < 4 * TURNS);
    }
}

/* A thread whose own freed blocks come back to it all the time holds a few magazines more than it needs; one that only
 * takes gets those before memory grows. */
enum { SPARE = 700, SPARE_BYTES = 500, SPARE_TAKEN = 300 };
static void *take_blocks(void *unused) {
    for (int i = 0; i < SPARE_TAKEN; i++) HOLDS(malloc(SPARE_BYTES) != NULL);
    return unused;
}

PROMISE(what_one_thread_holds_too_much_of_serves_another_before_memory_grows) {
    static void *blocks[SPARE];
    pthread_t other;
    for (int i = 0; i < SPARE; i++) blocks[i] = malloc(SPARE_BYTES);
    for (int i = 0; i < SPARE; i++) free(blocks[i]);
    for (int i = 0; i < SPARE / 3; i++) blocks[i] = malloc(SPARE_BYTES); /* asks its part of the depot */
    int64_t carved = counter("carved_blocks");
    HOLDS(pthread_create(&other, NULL, take_blocks, NULL) == 0 && pthread_join(other, NULL) == 0);
    HOLDS(counter("carved_blocks") - carved < SPARE_TAKEN / 4);
}
