/* A heap does not age: what is built after something else was torn down, in whatever order, lies in the order in which
 * it is built, so a walk through it costs what it costs in a fresh heap. */
#include "../promise.h"

enum { COUNT = 400000, SIZE = 48, PAGE = 4096 };
static char *blocks[COUNT];

static void build(size_t count) {
    for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
}

/* `count` of them, any, in any order. */
static void tear_down(size_t count) {
    srandom(1);
    for (size_t i = 0; i < count; i++) {
        size_t other = i + (size_t)random() % (COUNT - i);
        char *block = blocks[other];
        blocks[other] = blocks[i];
        free(block);
    }
}

/* Of a hundred blocks so many lie less than a page behind the one before. */
static size_t in_order(size_t count) {
    size_t near = 0;
    for (size_t i = 1; i < count; i++) near += (uintptr_t)blocks[i] - (uintptr_t)blocks[i - 1] < PAGE;
    return near * 100 / count;
}

PROMISE(after_all_was_freed_in_random_order_new_blocks_lie_in_a_row) {
    for (int round = 0; round < 3; round++) {
        build(COUNT);
        HOLDS(in_order(COUNT) >= 95);
        tear_down(COUNT);
    }
}

PROMISE(after_half_was_freed_in_random_order_new_blocks_lie_in_a_row) {
    build(COUNT);
    for (int round = 0; round < 3; round++) {
        tear_down(COUNT / 2);
        build(COUNT / 2);
        HOLDS(in_order(COUNT / 2) >= 80);
    }
}
