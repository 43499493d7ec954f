/* A heap does not age: what is built after something else was torn down, in whatever order, lies in the order in which
 * it is built, so a walk through it costs what it costs in a fresh heap; and it takes no more memory. */
#include "../serve.h"

enum { COUNT = 400000, SIZE = 48, PAGE = 4096, THREADS = 40, KEPT = 400 };
static char *blocks[COUNT];

static void build(char **blocks, size_t count, size_t size) {
    for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(size), 1, size);
}

/* `count` of the first so many, any, in any order; the others move up. */
static void tear_down(char **blocks, size_t count, size_t of) {
    for (size_t i = 0; i < count; i++) {
        size_t other = i + (size_t)random() % (of - i);
        char *block = blocks[other];
        blocks[other] = blocks[i];
        free(block);
    }
}

/* Of a hundred blocks so many lie less than a page behind the one before. */
static size_t in_order(char **blocks, size_t count) {
    size_t near = 0;
    for (size_t i = 1; i < count; i++) near += (uintptr_t)blocks[i] - (uintptr_t)blocks[i - 1] < PAGE;
    return near * 100 / count;
}

static void *tear_all_down(void *unused) {
    tear_down(blocks, COUNT, COUNT);
    return unused;
}

static void in_thread(void *(*work)(void *), void *what) {
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, work, what) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);
}

PROMISE(after_all_was_freed_in_random_order_new_blocks_lie_in_a_row) {
    for (int round = 0; round < 4; round++) {
        build(blocks, COUNT, SIZE);
        HOLDS(in_order(blocks, COUNT) >= 95);
        tear_down(blocks, COUNT, COUNT);
    }
}

/* Once could be a burst, whose blocks a thread keeps at hand. */
PROMISE(after_2_mb_were_freed_twice_in_random_order_new_blocks_lie_in_a_row) {
    for (int round = 0; round < 6; round++) {
        build(blocks, COUNT / 10, SIZE);
        if (round != 1) HOLDS(in_order(blocks, COUNT / 10) >= 90);
        tear_down(blocks, COUNT / 10, COUNT / 10);
    }
}

struct node {
    struct node **kids;
    char *text;
    long count;
    char other[24];
};
static size_t nodes;

static struct node *grow_tree(int depth) {
    struct node *node = calloc(1, sizeof *node);
    if (nodes < COUNT) blocks[nodes++] = (char *)node;
    node->text = malloc(1 + (size_t)random() % 60);
    for (long i = depth > 0 ? 1 + random() % 10 : 0; i > 0; i--) {
        node->kids = realloc(node->kids, (size_t)(node->count + 1) * sizeof *node->kids);
        node->kids[node->count++] = grow_tree(depth - 1);
    }
    return node;
}

static void fell_tree(struct node *node) {
    for (long i = 0; i < node->count; i++) fell_tree(node->kids[i]);
    free(node->kids);
    free(node->text);
    free(node);
}

/* As parsed documents are, each a little other than the last one. A row that leads downwards is as good. */
PROMISE(after_trees_were_freed_depth_first_new_ones_lie_in_a_row) {
    static struct node *trees[COUNT];
    for (int round = 0; round < 12; round++) {
        size_t count = 0, near = 0;
        for (nodes = 0; nodes < COUNT / 4;) trees[count++] = grow_tree(4);
        for (size_t i = 1; i < nodes; i++) near += (uintptr_t)blocks[i] - (uintptr_t)blocks[i - 1] + 256 < 512;
        HOLDS(near * 100 / nodes >= 80);
        while (count > 0) fell_tree(trees[--count]);
    }
}

PROMISE(after_packets_were_freed_in_random_order_new_ones_lie_in_a_row) {
    enum { PACKET = 1500, PACKETS = 16 * MIB / PACKET };
    for (int round = 0; round < 4; round++) {
        build(blocks, PACKETS, PACKET);
        HOLDS(in_order(blocks, PACKETS) >= 90);
        tear_down(blocks, PACKETS, PACKETS);
    }
}

PROMISE(after_half_was_freed_in_random_order_new_blocks_lie_in_a_row) {
    build(blocks, COUNT, SIZE);
    for (int round = 0; round < 4; round++) {
        tear_down(blocks, COUNT / 2, COUNT);
        build(blocks, COUNT / 2, SIZE);
        HOLDS(in_order(blocks, COUNT / 2) >= 80);
    }
}

PROMISE(after_other_threads_freed_all_in_random_order_new_blocks_lie_in_a_row) {
    for (int round = 0; round < 4; round++) {
        build(blocks, COUNT, SIZE);
        HOLDS(in_order(blocks, COUNT) >= 95);
        in_thread(tear_all_down, NULL);
    }
}

/* Of 2 MB each, over and over; the blocks of the last time lie in a row. */
static void *build_and_tear_down(void *mine) {
    enum { MINE = COUNT / 10 };
    for (int round = 0; round < 20; round++) {
        build(mine, MINE, SIZE);
        if (round == 19) HOLDS(in_order(mine, MINE) >= 90);
        tear_down(mine, MINE, MINE);
    }
    return NULL;
}

PROMISE(threads_that_build_and_tear_down_at_a_time_do_not_mix_their_blocks) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        HOLDS(pthread_create(&threads[i], NULL, build_and_tear_down, blocks + i * (COUNT / 10)) == 0);
    for (int i = 0; i < 3; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
}

static pthread_barrier_t turn;

/* Two threads by turns: the other one's blocks lie free while one builds. A block's second word says who had it. */
static void *build_by_turns(void *mine) {
    enum { MINE = 40000, TURNS = 12 };
    char **own = mine;
    size_t foreign = 0;
    for (int round = 0; round < TURNS; round++) {
        pthread_barrier_wait(&turn);
        if ((own == blocks) == round % 2) continue;
        for (size_t i = 0; i < MINE; i++) {
            void **block = malloc(16);
            own[i] = (char *)block;
            foreign += block[1] != NULL && block[1] != mine;
            block[0] = block[1] = mine;
        }
        tear_down(own, MINE, MINE);
    }
    HOLDS(foreign <= MINE / 4);
    return NULL;
}

PROMISE(threads_that_build_a_little_by_turns_do_not_mix_their_blocks) {
    pthread_t threads[2];
    HOLDS(pthread_barrier_init(&turn, NULL, 2) == 0);
    for (int i = 0; i < 2; i++)
        HOLDS(pthread_create(&threads[i], NULL, build_by_turns, blocks + i * (COUNT / 2)) == 0);
    for (int i = 0; i < 2; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
}

static _Atomic int rests, goes_on;

/* Keeps one block in eight, all over 19 MB, and rests. */
static void *leave_holes(void *unused) {
    build(blocks, COUNT, SIZE);
    tear_down(blocks, COUNT - COUNT / 8, COUNT);
    rests = 1;
    while (!goes_on) usleep(1000);
    return unused;
}

PROMISE(what_a_thread_freed_that_rests_now_serves_others) {
    enum { MINE = COUNT / 2 };
    static char *mine[MINE];
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, leave_holes, NULL) == 0);
    while (!rests) usleep(1000);
    usleep(50000);
    long before = resident_bytes();
    for (int round = 0; round < 8; round++) {
        for (size_t i = 0; i < MINE; i++)
            if (mine[i] == NULL) mine[i] = malloc(SIZE), *(char **)mine[i] = mine[i];
        HOLDS(resident_bytes() - before < 4 * MIB);
        for (size_t i = 0; i < MINE; i++) HOLDS(*(char **)mine[i] == mine[i]);
        for (size_t i = 0; i < MINE; i++)
            if (random() % 8 > round) free(mine[i]), mine[i] = NULL;
    }
    goes_on = 1;
    HOLDS(pthread_join(thread, NULL) == 0);
}

/* Builds 12 MiB of some size and frees all of it but one block in 400. */
static void *leave_a_little(void *size) {
    size_t count = 12 * MIB / *(size_t *)size;
    if (count > COUNT) count = COUNT;
    build(blocks, count, *(size_t *)size);
    tear_down(blocks, count - count / KEPT, count);
    return NULL;
}

/* Bytes that each of THREADS threads adds which take one block of each size. */
static pthread_barrier_t all_have;

static void *take_one_of_each(void *unused) {
    void *taken[200];
    int count = 0;
    for (size_t size = 16; size <= 8192; size += size < 1024 ? 16 : size / 8) *(char *)(taken[count++] = malloc(size)) = 1;
    pthread_barrier_wait(&all_have);
    pthread_barrier_wait(&all_have);
    while (count > 0) free(taken[--count]);
    return NULL;
}

static long new_threads_take(void) {
    pthread_t threads[THREADS];
    long before = resident_bytes();
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, take_one_of_each, NULL) == 0);
    pthread_barrier_wait(&all_have);
    long taken = resident_bytes() - before;
    pthread_barrier_wait(&all_have);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return taken / THREADS;
}

static void *take_much_for_others(void *list) {
    for (int round = 0; round < 40; round++)
        for (size_t size = 16; size <= 8192; size += size < 1024 ? 16 : size / 8) {
            void **block = malloc(size);
            *block = *(void **)list;
            *(void **)list = block;
        }
    pthread_barrier_wait(&all_have); /* all at a time, so that each has a heap of its own */
    return NULL;
}

PROMISE(threads_take_no_more_than_those_that_ended_before) {
    pthread_t threads[THREADS];
    static void *lists[THREADS];
    pthread_barrier_init(&all_have, NULL, THREADS + 1);
    long first = new_threads_take();
    for (int generation = 0; generation < 10; generation++) {
        for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, take_much_for_others, &lists[i]) == 0);
        pthread_barrier_wait(&all_have);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; i++)
            for (void *block; (block = lists[i]) != NULL; free(block)) lists[i] = *(void **)block;
    }
    usleep(2500000);
    HOLDS(new_threads_take() < first + first / 4);
}

PROMISE(threads_of_different_sizes_that_leave_a_little_take_little) {
    long before = resident_bytes();
    for (int i = 0; i < THREADS; i++) {
        size_t size = 16 * (1 + (size_t)random() % 64);
        in_thread(leave_a_little, &size);
    }
    HOLDS(resident_bytes() - before < 168 * MIB);
}
