/* Promise 10, its second half: only what was touched becomes resident, and what a program fills costs few faults. */
#include "../library.h"
#include "../peak.h"
#include <malloc.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mman.h>

PROMISE(only_touched_memory_is_resident) {
    long before = resident_bytes();
    char *large = malloc(64 * MIB), *zeroed = calloc(64, 4 * MIB), *grown = malloc(100);
    large[5 * MIB] = 1;
    HOLDS(zeroed[200 * MIB] == 0);
    grown = realloc(grown, 64 * MIB);
    grown[0] = 1;
    HOLDS(resident_bytes() - before < 8 * MIB); /* three touches, each a huge page at most */
    free(large);
    free(zeroed);
    free(grown);
}

PROMISE(sparse_blocks_stay_small_after_a_full_one) {
    char *full = memset(malloc(4 * MIB), 1, 4 * MIB);
    free(full);
    char *sparse = calloc(1, 1024 * (size_t)MIB);
    long before = resident_bytes();
    for (size_t at = 0; at < 1024 * (size_t)MIB; at += 2 * MIB) sparse[at + 5000] = 1;
    HOLDS(resident_bytes() - before < 16 * MIB);
    free(sparse);
}

/* Large blocks were filled, so those to come may be worth huge pages; these are not, and that is noticed. */
static void *free_it(void *block) {
    free(block);
    return NULL;
}

static long bytes_of_touching(int count, size_t size, size_t step) {
    long before = resident_bytes();
    for (int i = 0; i < count; i++) {
        char *block = blocks[i] = malloc(size);
        for (size_t at = 0; at < size; at += step) block[at] = 1;
    }
    return resident_bytes() - before;
}

PROMISE(sparse_blocks_stay_small_beside_a_full_one) {
    memset(malloc(4 * MIB), 1, 4 * MIB);
    HOLDS(bytes_of_touching(1000, 1 * MIB, 1 * MIB) < 128 * MIB);
}

PROMISE(sparse_blocks_stay_small_after_full_ones) {
    memset(blocks, 0, sizeof blocks);
    peak_of(3 * MIB);
    malloc_trim(0);
    HOLDS(bytes_of_touching(300, 3 * MIB, 3 * MIB) < 128 * MIB);
}

/* One in ten is filled, none is freed: what the filled ones are like must not cost the others memory. */
PROMISE(sparse_blocks_stay_small_among_full_ones) {
    enum { SIZE = 1 * MIB, COUNT = 3000, FULL = COUNT / 10 };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = malloc(SIZE);
        if (rand() % COUNT < FULL) memset(blocks[i], 1, SIZE);
        else blocks[i][0] = 1;
    }
    HOLDS(resident_bytes() - before < 2L * FULL * SIZE);
}

/* From 32 MiB on blocks go back when they are freed, and with them what was asked of the kernel. */
PROMISE(sparse_blocks_stay_small_where_longer_ones_were) {
    for (int i = 0; i < 20; i++) free(memset(malloc(40 * MIB), 1, 40 * MIB));
    HOLDS(bytes_of_touching(60, 4 * MIB, 1 * MIB) < 16 * MIB);
}

/* Of a size between two lengths of runs. */
PROMISE(freed_large_blocks_are_taken_again) {
    enum { SIZE = 1100 * 1000, COUNT = PEAK / SIZE };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
        HOLDS(resident_bytes() - before < PEAK / 4 * 5);
        for (int i = 0; i < COUNT; i++) free(blocks[i]);
    }
}

PROMISE(what_took_a_large_blocks_place_says_nothing_about_large_blocks) {
    enum { SIZE = 30 * MIB, SMALL = 1000 };
    pthread_t other;
    char *empty = malloc(SIZE);
    empty[0] = 1;
    pthread_create(&other, NULL, free_it, empty);
    pthread_join(other, NULL);
    for (int i = 0; i < SIZE / SMALL * 3 / 2; i++) memset(malloc(SMALL), 1, SMALL);
    HOLDS(bytes_of_touching(10, SIZE, 2 * MIB) < 30 * MIB);
}

PROMISE(only_touched_memory_is_resident_where_large_blocks_were) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    peak_of(2 * MIB);
    expect_given_back(before);
    malloc_trim(0);
    HOLDS(bytes_of_touching(400, 512 * KIB, 512 * KIB) < 16 * MIB);
}

static long faults_of_filling(char *block, size_t size) {
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    memset(block, 1, size);
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
}

/* Does the kernel give some where a program asks for them itself? */
static bool huge_pages_come(void) {
    enum { SIZE = 64 * MIB };
    char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(own, SIZE, MADV_HUGEPAGE);
    bool few = faults_of_filling(own, SIZE) < SIZE / 4096 / 8;
    munmap(own, SIZE);
    return few;
}

PROMISE(few_mappings_are_needed_where_large_blocks_were) {
    enum { SIZE = 60000, COUNT = PEAK / SIZE };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    peak_of(1 * MIB);
    expect_given_back(before);
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (int i = 0; i < COUNT; i += 2) free(blocks[i]);
    malloc_trim(0);
    HOLDS(mappings() < 300);
}

PROMISE(few_mappings_are_needed_for_vectors_that_grow) {
    memset(blocks, 0, sizeof blocks);
    for (size_t size = 1000; size < 300 * 1000; size *= 2)
        for (int i = 0; i < 1000; i++) memset(blocks[i] = realloc(blocks[i], size), 1, size);
    HOLDS(mappings() < 300);
}

PROMISE(filled_large_blocks_cost_few_faults_beside_sparse_ones) {
    enum { SIZE = 20 * MIB, COUNT = 20, FEW = COUNT * (SIZE / 4096) / 4 };
    if (!huge_pages_come()) UNTRIED("the kernel gives no huge pages here");
    long faults = 0;
    for (int i = 0; i < COUNT; i++) {
        faults += faults_of_filling(blocks[i] = malloc(SIZE), SIZE);
        ((char *)malloc(1 * MIB))[0] = 1;
    }
    HOLDS(faults < FEW);
}

/* A program that fills its large blocks gets huge pages for them before it has freed one. */
PROMISE(filled_large_blocks_cost_few_faults) {
    enum { SIZE = 4 * MIB, COUNT = 16, FEW = COUNT * SIZE / 4096 / 4 };
    if (!huge_pages_come()) UNTRIED("the kernel gives no huge pages here");
    long faults = 0;
    for (int i = 0; i < COUNT; i++) faults += faults_of_filling(blocks[i] = malloc(SIZE), SIZE);
    HOLDS(faults < FEW);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
}

/* What is known of a size goes for the next one, of which nothing is known. */
PROMISE(filled_large_blocks_of_a_new_size_cost_few_faults) {
    enum { KNOWN = 1536 * KIB, SIZE = 2560 * KIB, COUNT = 8 };
    if (!huge_pages_come()) UNTRIED("the kernel gives no huge pages here");
    long faults = 0;
    for (int i = 0; i < 4; i++) memset(malloc(KNOWN), 1, KNOWN);
    for (int i = 0; i < COUNT; i++) faults += faults_of_filling(malloc(SIZE), SIZE);
    HOLDS(faults < COUNT * (SIZE / 4096) / 4);
}

/* A table that doubles while the one before it is still read: of each size there is one. */
static char *double_a_table(size_t longest, long *cost) {
    char *table = memset(malloc(1 * MIB), 1, 1 * MIB);
    for (size_t size = 2 * MIB; size <= longest; size *= 2) {
        char *longer = calloc(1, size);
        HOLDS(longer[0] == 0 && longer[size - 1] == 0);
        *cost += faults_of_filling(longer, size);
        free(table);
        table = longer;
    }
    return table;
}

PROMISE(a_table_that_doubles_costs_few_faults_the_first_time_and_later) {
    enum { LONGEST = 64 * MIB };
    if (!huge_pages_come()) UNTRIED("the kernel gives no huge pages here");
    for (int life = 0; life < 4; life++) {
        long cost = 0;
        free(double_a_table(LONGEST, &cost));
        malloc_trim(0); /* else the next one has this one's pages */
        HOLDS(cost < 2 * LONGEST / 4096 / 4);
    }
}

/* It speaks for the next doubling, not for those beyond; and of that for one block, until that was filled, too. */
PROMISE(sparse_blocks_stay_small_after_a_table_that_doubled) {
    enum { LONGEST = 16 * MIB };
    long cost = 0;
    free(double_a_table(LONGEST, &cost));
    HOLDS(bytes_of_touching(10, 4 * LONGEST, 2 * MIB) < 16 * MIB);
    HOLDS(bytes_of_touching(10, 2 * LONGEST, 2 * MIB) < 2 * LONGEST + 16 * MIB);
}

PROMISE(filled_aligned_blocks_cost_few_faults) {
    enum { SIZE = 20 * MIB, COUNT = 20, FEW = COUNT * (SIZE / 4096) / 4 };
    if (!huge_pages_come()) UNTRIED("the kernel gives no huge pages here");
    long faults = 0;
    for (int i = 0; i < COUNT; i++) {
        HOLDS(posix_memalign((void **)&blocks[i], 64, SIZE) == 0);
        faults += faults_of_filling(blocks[i], SIZE);
    }
    HOLDS(faults < FEW);
}

/* Does the kernel move pages into a huge one when it is asked to (Linux 6.1)? */
static bool pages_are_moved(void) {
    enum { SIZE = 4 * MIB };
    char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *whole = own + 2 * MIB - (uintptr_t)own % (2 * MIB);
    *whole = 1;
    madvise(whole, 2 * MIB, MADV_HUGEPAGE);
    bool moved = madvise(whole, 2 * MIB, 25 /* MADV_COLLAPSE */) == 0;
    munmap(own, SIZE);
    return moved;
}

PROMISE(small_blocks_cost_fewer_faults_and_no_memory_once_there_are_many) {
    enum { SIZE = 1000, ALL = 32 * MIB, COUNT = ALL / SIZE };
    if (!huge_pages_come() || !pages_are_moved()) UNTRIED("the kernel gives no huge pages here");
    memset(blocks, 0, sizeof blocks);
    struct rusage first, last;
    long before = resident_bytes();
    getrusage(RUSAGE_SELF, &first);
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    getrusage(RUSAGE_SELF, &last);
    HOLDS(last.ru_minflt - first.ru_minflt < ALL / 4096 * 2 / 3);
    HOLDS(resident_bytes() - before < ALL + ALL / 16 + 2 * MIB);
}

/* Bytes on huge pages. */
static long huge_bytes(void) {
    long kib = -1;
    char line[256];
    FILE *rows = fopen("/proc/self/smaps_rollup", "r");
    while (fgets(line, sizeof line, rows) != NULL) sscanf(line, "AnonHugePages: %ld kB", &kib);
    fclose(rows);
    return kib * KIB;
}

/* Fills small blocks of many sizes; they stay. */
static void fill_mixed(size_t all) {
    enum { MOST = 1000 };
    uint32_t random = 1;
    for (size_t size, bytes = 0; bytes < all; bytes += size) {
        random = random * 1103515245 + 12345;
        size = 16 + (random >> 8) % MOST;
        memset(malloc(size), 1, size);
    }
}

/* A program of a few megabytes reads and writes all of them, page after page: what is resident anyway can cost fewer
 * misses of the TLB. Not the last ones, which are not filled yet. */
PROMISE(a_heap_that_is_filled_lies_on_huge_pages) {
    enum { ALL = 12 * MIB };
    if (!huge_pages_come() || !pages_are_moved()) UNTRIED("the kernel gives no huge pages here");
    long before = resident_bytes();
    fill_mixed(ALL);
    HOLDS(huge_bytes() >= ALL / 2);
    HOLDS(resident_bytes() - before < ALL + ALL / 4);
}

/* Most programs end before their heap is large. One that only grows fills what it takes, so its first superslabs are
 * worth huge pages, too. */
static void grow_a_small_heap(size_t size) {
    enum { ALL = 20 * MIB };
    if (!huge_pages_come()) UNTRIED("the kernel gives no huge pages here");
    struct rusage first, last;
    long before = resident_bytes();
    getrusage(RUSAGE_SELF, &first);
    for (size_t i = 0; i < ALL / size; i++) memset(malloc(size), 1, size);
    getrusage(RUSAGE_SELF, &last);
    HOLDS(last.ru_minflt - first.ru_minflt < ALL / 4096 * 2 / 3);
    HOLDS(resident_bytes() - before < ALL + ALL / 5);
}

PROMISE(a_small_heap_that_only_grows_costs_few_faults) { grow_a_small_heap(1000); }
PROMISE(a_small_heap_of_longer_blocks_that_only_grows_costs_few_faults) { grow_a_small_heap(16000); }

/* Those that are not filled yet are looked at once each time. */
PROMISE(a_heap_that_grows_asks_little_about_its_pages) {
    fill_mixed(20 * MIB);
    HOLDS(counter("sys_mincore") < 128);
}

/* Fills so many bytes of blocks, then takes others and touches a page of each. */
static void stay_small_after(size_t filled) {
    enum { SIZE = 16 * KIB, ALL = 128 * MIB, COUNT = ALL / SIZE };
    for (size_t bytes = 0; bytes < filled; bytes += SIZE) memset(malloc(SIZE), 1, SIZE);
    long before = resident_bytes();
    for (int i = 0; i < COUNT; i++) *(char *)malloc(SIZE) = 1;
    HOLDS(resident_bytes() - before < ALL / 2);
}

PROMISE(small_blocks_of_which_little_is_touched_stay_small) { stay_small_after(0); }
PROMISE(small_blocks_of_which_little_is_touched_stay_small_after_full_ones) { stay_small_after(64 * MIB); }

/* Of longer ones only the pages tell how much was touched. */
PROMISE(filled_small_blocks_cost_few_faults_whatever_their_size) {
    enum { ALL = 128 * MIB };
    if (!huge_pages_come() || !pages_are_moved()) UNTRIED("the kernel gives no huge pages here");
    for (size_t size = 1000; size <= 32 * KIB; size *= 2) {
        long faults = 0;
        for (size_t bytes = 0; bytes < ALL; bytes += size) faults += faults_of_filling(malloc(size), size);
        HOLDS(faults < ALL / 4096 / 4);
    }
}

PROMISE(filled_small_blocks_cost_few_faults_if_their_sizes_are_mixed) {
    enum { ALL = 256 * MIB };
    if (!huge_pages_come() || !pages_are_moved()) UNTRIED("the kernel gives no huge pages here");
    long faults = 0;
    uint32_t random = 1;
    for (size_t size, bytes = 0; bytes < ALL; bytes += size) {
        random = random * 1103515245 + 12345;
        size = 4 * KIB + (random >> 8) % (28 * KIB);
        faults += faults_of_filling(malloc(size), size);
    }
    HOLDS(faults < ALL / 4096 / 3);
}

PROMISE(filled_blocks_of_a_quarter_megabyte_cost_few_faults) {
    enum { ALL = 256 * MIB };
    if (!huge_pages_come()) UNTRIED("the kernel gives no huge pages here");
    long faults = 0;
    for (size_t bytes = 0; bytes < ALL; bytes += 256 * KIB) faults += faults_of_filling(malloc(256 * KIB), 256 * KIB);
    HOLDS(faults < ALL / 4096 / 2);
}

PROMISE(barely_touched_blocks_stay_small_after_filled_ones_of_a_quarter_megabyte) {
    for (int i = 0; i < 400; i++) memset(malloc(256 * KIB), 1, 256 * KIB);
    for (size_t size = 256 * KIB; size <= 1 * MIB; size *= 4) {
        long before = resident_bytes();
        for (size_t bytes = 0; bytes < 400 * MIB; bytes += size) *(char *)malloc(size) = 1;
        HOLDS(resident_bytes() - before < 32 * MIB);
    }
}

PROMISE(many_barely_touched_blocks_stay_small) {
    enum { BLOCKS = 400 };
    long before = resident_bytes();
    for (int i = 0; i < BLOCKS; i++) (blocks[i] = malloc(1 * MIB))[0] = 1;
    HOLDS(resident_bytes() - before < BLOCKS * 64L * KIB);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

/* Though somebody had the memory before, and its pages are kept for a while. */
PROMISE(a_zeroed_giant_is_touched_by_its_caller_alone) {
    enum { SIZE = 256 * MIB };
    for (int round = 0; round < 6; round++) {
        long before = resident_bytes();
        char *block = calloc(1, SIZE);
        HOLDS(block[SIZE / 2] == 0 && block[SIZE - 1] == 0);
        block[SIZE / 2] = block[SIZE - 1] = 1;
        HOLDS(resident_bytes() - before < 8 * MIB);
        free(block);
    }
}

/* However many were filled: of so long ones one that is not costs much. */
PROMISE(very_large_sparse_blocks_stay_small_after_full_ones) {
    enum { SIZE = 128 * MIB };
    for (int i = 0; i < 3; i++) memset(malloc(SIZE), 1, SIZE);
    HOLDS(bytes_of_touching(10, SIZE, 2 * MIB) < 3L * SIZE);
}

/* What was freed has pages at its start only; they go, rather than that the rest gets some. */
PROMISE(a_sparse_giant_stays_small_when_it_is_zeroed_again) {
    enum { SIZE = 512 * MIB };
    long before = resident_bytes();
    for (int round = 0; round < 4; round++) {
        char *block = calloc(1, SIZE);
        for (size_t at = 0; at < 50 * MIB; at++) HOLDS(block[at] == 0);
        memset(block, 1, 40 * MIB);
        HOLDS(resident_bytes() - before < 64 * MIB);
        free(block);
    }
}

/* Even to where a full one was. */
PROMISE(a_sparse_giant_stays_small_when_it_moves) {
    enum { SIZE = 300 * MIB, FULL = 40 * MIB };
    char *full = malloc(SIZE + SIZE / 4), *block = malloc(SIZE), *wall = malloc(SIZE);
    memset(full, 1, SIZE);
    free(full);
    memset(block, 7, FULL);
    block[SIZE / 2] = 8;
    block[SIZE - 1] = 9;
    long before = resident_bytes();
    char *moved = realloc(block, SIZE + SIZE / 4);
    HOLDS(resident_bytes() - before < 64 * MIB);
    for (size_t at = 0; at < FULL; at++) HOLDS(moved[at] == 7);
    HOLDS(moved != block && moved[FULL] == 0 && moved[SIZE / 2] == 8 && moved[SIZE - 1] == 9);
    free(moved);
    free(wall);
}

/* What is learnt when a block is freed that is shorter by now leaves what came to lie beside it as it is. */
PROMISE(neighbours_of_long_blocks_that_shrank_stay_as_they_are) {
    enum { ROUNDS = 4, COUNT = 8, LONG = 40 * MIB, MORE = 200 * KIB, BESIDE = 600 * KIB, MANY = 500 };
    char **spacers = &blocks[COUNT], **beside = &blocks[2 * COUNT];
    for (size_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++) {
            blocks[i] = memset(malloc(LONG), 1, LONG);
            spacers[i] = malloc(BESIDE);
        }
        for (size_t size = 12 * MIB; size >= 3 * MIB; size /= 4)
            for (int i = 0; i < COUNT; i++) HOLDS((blocks[i] = realloc(blocks[i], size + MORE))[size - 1] == 1);
        for (int i = 0; i < MANY; i++) beside[i] = memset(malloc(BESIDE), 2, BESIDE);
        for (int i = 0; i < COUNT; i++) free(blocks[i]);
        for (int i = 0; i < MANY; i++) HOLDS(beside[i][0] == 2 && memcmp(beside[i], beside[i] + 1, BESIDE - 1) == 0);
        for (int i = 0; i < COUNT + MANY; i++) free(spacers[i]);
        malloc_trim(0); /* so that the next ones have no pages, either */
    }
}

/* Of whole pages or not, longer or shorter than it was: what lies behind its end stays as it is. */
PROMISE(a_giant_of_any_size_moves_whole) {
    static const size_t sizes[] = {200 * MIB, 100 * MIB + 5, 150 * MIB, 33 * MIB + 4095, 70 * MIB + 1, 40 * MIB};
    char *block = malloc(300 * MIB);
    for (size_t i = 0, had = 300 * MIB; i < sizeof sizes / sizeof *sizes; had = sizes[i++]) {
        size_t less = had < sizes[i] ? had : sizes[i];
        block[0] = block[less / 2] = block[less - 1] = (char)(i + 1);
        block = realloc(block, sizes[i]);
        HOLDS(block[0] == (char)(i + 1) && block[less / 2] == (char)(i + 1) && block[less - 1] == (char)(i + 1));
    }
    free(block);
}

static long faults(void) {
    struct rusage usage;
    HOLDS(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

/* A page that a child writes to is copied: what its parent had freed is nothing to a server's worker that does little. */
PROMISE(a_child_that_works_a_little_copies_little) {
    enum { KEPT = 50000, FREED = 50000, ROUNDS = 2000, HELD = 10 };
    static char *freed[FREED];
    for (int i = 0; i < KEPT; i++) {
        memset(malloc(50 + (size_t)i * 7919 % 500), 1, 50);
        freed[i] = memset(malloc(50 + (size_t)i * 104729 % 500), 1, 50);
    }
    for (int i = 0; i < FREED; i++) free(freed[i]);
    pid_t child = fork();
    if (child == 0) {
        long before = faults();
        for (int round = 0; round < ROUNDS; round++) {
            char *held[HELD];
            for (int i = 0; i < HELD; i++) held[i] = memset(malloc(1 + (size_t)(round + i) * 7919 % 1000), 1, 1);
            for (int i = 0; i < HELD; i++) free(held[i]);
        }
        HOLDS(faults() - before < 600); /* of the 7000 pages that the freed blocks lie in */
        _exit(0);
    }
    wait_for(child);
}

/* But what a child frees itself goes back, and what its parent left behind once that has ended. */
PROMISE(a_child_whose_parent_has_ended_gives_back_what_it_had_freed) {
    enum { BLOCKS = 200000, SIZE = 256 };
    static char *had[BLOCKS];
    int pipes[2];
    HOLDS(pipe(pipes) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        for (int i = 0; i < BLOCKS; i++) had[i] = memset(malloc(SIZE), 1, SIZE);
        for (int i = 0; i < BLOCKS; i++) free(had[i]);
        pid_t self = getpid();
        if (fork() != 0) _exit(0);
        while (getppid() == self) usleep(1000);
        for (int round = 0; round < 40; round++) { /* it works on, and frees as it does */
            for (int i = 0; i < BLOCKS / 2; i++) had[i] = memset(malloc(2 * SIZE), 1, 2 * SIZE);
            for (int i = 0; i < BLOCKS / 2; i++) free(had[i]);
            usleep(50000);
        }
        long resident = resident_bytes();
        HOLDS(write(pipes[1], &resident, sizeof resident) == sizeof resident);
        _exit(0);
    }
    wait_for(parent);
    close(pipes[1]);
    long resident = 0;
    HOLDS(read(pipes[0], &resident, sizeof resident) == sizeof resident);
    HOLDS(resident < (long)BLOCKS * SIZE * 3 / 2); /* of the parent's as many again */
}

enum { WAY = 64, HANDED = 100000 };
static char *_Atomic way[WAY];
static int on_the_way = WAY; /* blocks that can be */

static void *take_off(void *unused) {
    (void)unused;
    for (int i = 0; i < HANDED; i++) {
        char *block;
        while ((block = way[i % on_the_way]) == NULL) sched_yield();
        way[i % on_the_way] = NULL;
        free(block);
    }
    return NULL;
}

static void hand_over(size_t size) {
    pthread_t other;
    HOLDS(pthread_create(&other, NULL, take_off, NULL) == 0);
    for (int i = 0; i < HANDED; i++) {
        while (way[i % on_the_way] != NULL) sched_yield();
        char *block = malloc(size);
        block[0] = 1;
        way[i % on_the_way] = block;
    }
    HOLDS(pthread_join(other, NULL) == 0);
}

/* Longer runs that one thread takes and another frees go through the memory that all share, where it is looked whether
 * huge pages are worth it. Of these little is touched, so they are not, and the kernel is asked ever more seldom. */
PROMISE(sparse_blocks_that_come_and_go_cost_few_system_calls) {
    hand_over(600 * KIB);
    HOLDS(counter("sys_mincore") < HANDED / 50);
}

/* Short ones are handed on several at a time. */
PROMISE(what_one_thread_frees_serves_another_without_a_search) {
    on_the_way = 16;
    hand_over(50 * KIB);
    hand_over(300 * KIB);
    HOLDS(counter("spans_taken") < 2 * HANDED / 10);
}

/* A thread that may have fewer in hand than there are in what it is handed loses none. */
enum { PASSED = 200, PASSED_BYTES = 50 * KIB, PASSED_ROUNDS = 100 };
static char *passed[PASSED];
static pthread_barrier_t passed_turn;
static void *take_and_pass(void *unused) {
    static char *longer[40];
    for (int i = 0; i < 40; i++) longer[i] = malloc(600 * KIB);
    for (int i = 0; i < 40; i++) free(longer[i]); /* now it keeps no more beside those in hand */
    for (int round = 0; round < PASSED_ROUNDS; round++) {
        for (int i = 0; i < PASSED; i++) {
            passed[i] = malloc(PASSED_BYTES);
            free((void *)opaque((size_t)malloc(PASSED_BYTES)));
        }
        pthread_barrier_wait(&passed_turn);
        pthread_barrier_wait(&passed_turn);
    }
    return unused;
}

PROMISE(no_run_is_lost_on_its_way_where_hands_are_small) {
    pthread_t other;
    pthread_barrier_init(&passed_turn, NULL, 2);
    free((void *)opaque((size_t)malloc(PASSED_BYTES))); /* this thread's hand is as large as it was */
    set_knob("run_cache_bytes", 256 * KIB);
    int64_t before = counter("live_bytes");
    HOLDS(pthread_create(&other, NULL, take_and_pass, NULL) == 0);
    for (int round = 0; round < PASSED_ROUNDS; round++) {
        pthread_barrier_wait(&passed_turn);
        for (int i = 0; i < PASSED; i++) free(passed[i]);
        pthread_barrier_wait(&passed_turn);
    }
    HOLDS(pthread_join(other, NULL) == 0);
    HOLDS(counter("live_bytes") < before + 2 * PASSED_BYTES);
}

/* Such a block makes the first arena longer than others. */
PROMISE(a_first_block_of_70_gigabytes_leaves_the_next_ones_sound) {
    enum { RUN = 600 * KIB, TURNS = 42 << 20 };
    const size_t gigabyte = (size_t)1 << 30;
    char *first = malloc(70 * gigabyte);
    if (first == NULL) UNTRIED("the system has no room for so long a block");
    memset(first + 64 * gigabyte + 208 * MIB, 1, 4 * MIB);
    for (int i = 0; i < TURNS; i++) {
        void *volatile run = malloc(RUN);
        free(run);
    }
    free(first);
}
