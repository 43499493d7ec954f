/* Promise 10, its first half: memory goes back after a peak. */
#include "../library.h"
#include "../peak.h"
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

static void give_back_after(size_t size) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    peak_of(size);
    expect_given_back(before);
}

PROMISE(a_peak_of_200_byte_blocks_goes_back) { give_back_after(200); }
PROMISE(a_peak_of_12_kib_blocks_goes_back) { give_back_after(12 * KIB); }
PROMISE(a_peak_of_200_kib_blocks_goes_back) { give_back_after(200 * KIB); }
PROMISE(a_peak_of_600_kib_blocks_goes_back) { give_back_after(600 * KIB); }
PROMISE(a_peak_of_1_mib_blocks_goes_back) { give_back_after(1 * MIB); }
PROMISE(every_peak_of_20_mib_blocks_goes_back) {
    give_back_after(20 * MIB);
    give_back_after(20 * MIB); /* by now the allocator knows that they are filled */
}

/* Under a limit on address space the addresses, too: others, such as the stacks of threads, find room there. */
PROMISE(under_a_limit_the_addresses_of_a_peak_go_back) {
    enum { LIMIT = 400 * MIB };
    void *others = MAP_FAILED;
    memset(blocks, 0, sizeof blocks);
    HOLDS(setrlimit(RLIMIT_AS, &(struct rlimit){LIMIT, LIMIT}) == 0);
    peak_of(12 * KIB);
    for (int waited = 0; waited < WAIT_MS && others == MAP_FAILED; waited += 50, usleep(50000))
        others = mmap(NULL, PEAK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HOLDS(others != MAP_FAILED);
}

/* What kept account of small blocks goes too: the slots of 300 MiB of them take 20 MiB. */
PROMISE(what_held_a_peak_of_32_byte_blocks_goes_back) {
    long before = resident_bytes();
    void **first = NULL;
    for (size_t i = 0; i < PEAK / 32; i++) {
        void **block = memset(malloc(32), 1, 32);
        *block = first;
        first = block;
    }
    for (void **next; first != NULL; first = next) {
        next = *first;
        free(first);
    }
    expect_at_most(before + PEAK / 32);
}

static void give_back_small(size_t peak, size_t least, unsigned doublings, long part) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    size_t count = 0;
    for (size_t bytes = 0, size; bytes < peak; bytes += size) {
        size = least << next_random() % doublings;
        size += next_random() % size;
        memset(blocks[count++] = malloc(size), 1, size);
    }
    for (size_t i = count - 1; i > 0; i--) {
        char **other = &blocks[next_random() % (i + 1)], *block = blocks[i];
        blocks[i] = *other;
        *other = block;
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    expect_at_most(before + (long)peak / part);
}

/* Freed in no order, small blocks and runs: hardly a page of theirs stays with a thread that rests. */
PROMISE(a_small_peak_of_many_sizes_goes_back) { give_back_small(48 * MIB, 20, 9, 8); }
PROMISE(a_small_peak_of_20_to_300_kib_goes_back) { give_back_small(32 * MIB, 20 * KIB, 4, 10); }

/* Values that grow from phase to phase: what the old sizes left serves the new ones. */
static void drift(size_t most, int phases) {
    static size_t sizes[PEAK / 200];
    size_t live = 0, mean = 300;
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (int phase = 0; phase < phases; phase++, mean += mean * 35 / 100)
        for (size_t i = 0; i < most / 300; i++) {
            size_t size = mean * (80 + next_random() % 41) / 100;
            if (blocks[i] != NULL && i < most / mean && next_random() % 10 == 0) continue;
            free(blocks[i]);
            live -= sizes[i];
            sizes[i] = i < most / mean ? size : 0;
            blocks[i] = sizes[i] != 0 ? memset(malloc(size), 1, size) : NULL;
            live += sizes[i];
            HOLDS(i % 1024 != 0 || resident_bytes() - before < 5 * (long)most);
        }
    for (size_t i = 0; i < most / 300; i++) free(blocks[i]);
}

PROMISE(sizes_that_drift_leave_little_behind) { drift(38 * MIB, 10); }

/* However far they drift: a few cached blocks of each size do not hold back the slabs. */
PROMISE(sizes_that_drift_far_leave_little_behind) { drift(10 * MIB, 14); }

/* Buffers that grow side by side: what the shorter ones left serves the longer ones. */
PROMISE(buffers_that_grow_leave_little_behind) {
    enum { COUNT = 1500, LONGEST = 100000 };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes(), live = 0;
    for (size_t size = 500, had = 0; had < LONGEST; had = size, size = 2 * size < LONGEST ? 2 * size : LONGEST)
        for (size_t i = 0; i < COUNT; i++, live += (long)(size - had)) {
            char *longer = memset(malloc(size), 1, size);
            free(blocks[i]);
            blocks[i] = longer;
            HOLDS(resident_bytes() - before < live + live / 2 + 8 * MIB);
        }
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
}

/* Free places of 64 KiB between slabs serve no slab of 128 KiB: what longer blocks left has to. */
PROMISE(what_blocks_above_32_kib_left_serves_shorter_ones) {
    enum { SMALL = 8 * MIB / KIB, LIVE = 64 * MIB, LONG = 60000, SHORT = 27000 };
    static char *small[SMALL];
    for (size_t i = 0; i < SMALL; i++) small[i] = memset(malloc(KIB), 1, KIB);
    for (size_t i = 0; i < SMALL; i++)
        if ((uintptr_t)small[i] / (64 * KIB) % 2 == 0) free(small[i]);
    malloc_trim(0);
    long before = resident_bytes();
    for (size_t i = 0; i < LIVE / LONG; i++) blocks[i] = memset(malloc(LONG), 1, LONG);
    for (size_t i = 0; i < LIVE / LONG; i++) free(blocks[i]);
    for (size_t i = 0; i < LIVE / SHORT; i++) blocks[i] = memset(malloc(SHORT), 1, SHORT);
    HOLDS(resident_bytes() - before < LIVE + LIVE / 2);
}

static void frame(size_t size) { free(memset(malloc(size), 1, size)); }

/* A thread keeps the runs that blocks leave when they grow, until it rests. */
PROMISE(what_blocks_left_when_they_grew_goes_back) {
    enum { COUNT = 1000, HAD = 100000, HAS = 170000 };
    long before = resident_bytes();
    for (size_t i = 0; i < COUNT; i++) memset(blocks[i] = malloc(HAD), 1, HAD);
    for (size_t i = 0; i < COUNT; i++) blocks[i] = realloc(blocks[i], HAS);
    expect_at_most(before + COUNT * (HAD + HAD / 2));
}

/* From the threshold on blocks go back when they are freed; but where one comes after the other, none is faulted in
 * anew. */
PROMISE(large_blocks_that_come_and_go_keep_their_pages_for_a_while) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (int i = 0; i < 4; i++) frame(100 * MIB);
    int64_t purged = counter("purged_bytes");
    for (int i = 0; i < 10; i++) frame(100 * MIB);
    HOLDS(counter("purged_bytes") - purged <= 100 * MIB);
    expect_given_back(before);
}

/* Its first part lies where the shorter one lay, and reads zero if that was asked for. */
PROMISE(a_giant_that_comes_again_longer_keeps_its_pages) {
    memset(blocks, 0, sizeof blocks);
    for (int i = 0; i < 4; i++) frame(100 * MIB);
    int64_t purged = counter("purged_bytes");
    for (size_t size = 104 * MIB; size <= 140 * MIB; size += 4 * MIB) {
        char *block = calloc(1, size);
        HOLDS(block[0] == 0 && memcmp(block, block + 1, size - 1) == 0);
        free(memset(block, 1, size));
    }
    HOLDS(counter("purged_bytes") - purged <= 140 * MIB);
}

static long clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The kernel refuses what would lengthen it for a giant, which lies elsewhere then. The purge delay is 500 ms. */
PROMISE(free_memory_that_could_not_serve_a_giant_is_no_older_for_it) {
    void *hole = malloc(140 * MIB), *held = malloc(200 * MIB), *last = malloc(60 * MIB);
    struct rlimit before, none;
    getrlimit(RLIMIT_AS, &before);
    none = (struct rlimit){1, before.rlim_max};
    free(last);
    free(hole);
    for (int round = 0; round < 10; round++) {
        malloc_trim(0);
        for (int i = 0; i < 3; i++) frame(60 * MIB);
        long began = clock_ms(), full = resident_bytes();
        setrlimit(RLIMIT_AS, &none);
        void *giant = malloc(110 * MIB);
        setrlimit(RLIMIT_AS, &before);
        HOLDS(giant != NULL);
        nanosleep(&(struct timespec){0, 350000000}, NULL);
        long left = resident_bytes();
        HOLDS(left > full - 30 * MIB || clock_ms() - began > 450);
        free(giant);
    }
    free(held);
}

PROMISE(large_blocks_that_grow_as_they_come_make_no_peak_of_all) {
    frame(MIB);
    long before = resident_bytes(), most = 0;
    for (size_t size = 40 * MIB; size <= 200 * MIB; size += 20 * MIB) {
        char *block = memset(malloc(size), 1, size);
        if (resident_bytes() > most) most = resident_bytes();
        free(block);
    }
    HOLDS(most - before < 240 * MIB);
}

/* What was freed waits for a minute, or for good, until the program wants it otherwise. */
static void goes_back_once_told(const char *knob, int64_t first, int64_t then) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    set_knob(knob, first);
    peak_of(5 * KIB);
    usleep(800000);
    HOLDS(resident_bytes() - before > PEAK / 2);
    set_knob(knob, then);
    expect_given_back(before);
}

PROMISE(a_trim_says_whether_anything_went_back) {
    library("hak_purge"); /* others may say so of a little that is always left */
    set_knob("background", 0);
    malloc_trim(0);
    for (size_t size = 200; size <= 2 * MIB; size *= 20) {
        HOLDS(malloc_trim(0) == 0);
        for (size_t i = 0; i < 8 * MIB / size; i++) memset(blocks[i] = malloc(size), 1, size);
        for (size_t i = 0; i < 8 * MIB / size; i++) free(blocks[i]);
        HOLDS(malloc_trim(0) == 1);
    }
}

PROMISE(a_shorter_delay_is_in_force_at_once) { goes_back_once_told("purge_delay_ms", 60000, 10); }
/* It may not while the program is idle, so it is the program's calls that give it back. */
PROMISE(what_may_not_go_back_when_idle_goes_back_by_later_calls) {
    set_knob("idle_return", 0);
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    peak_of(5 * KIB);
    for (int waited = 0; waited < WAIT_MS && resident_bytes() - before >= PEAK / 3; waited += 100) {
        usleep(100000);
        for (int i = 0; i < 60; i++) memset(blocks[i] = malloc(200 * KIB), 1, 200 * KIB);
        for (int i = 0; i < 60; i++) free(blocks[i]);
    }
    HOLDS(resident_bytes() - before < PEAK / 3);
}

PROMISE(what_lies_idle_goes_back_once_it_may) { goes_back_once_told("idle_return", 0, 1); }

PROMISE(a_peak_goes_back_with_the_rest_of_its_last_huge_pages) {
    give_back_after(8 * MIB + 64 * KIB);
    give_back_after(16 * MIB + 64 * KIB);
}

PROMISE(a_peak_of_zeroed_blocks_goes_back) {
    enum { SIZE = 4 * MIB };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t i = 0; i < PEAK / SIZE; i++) memset(blocks[i] = calloc(1, SIZE), 1, SIZE);
    for (size_t i = 0; i < PEAK / SIZE; i++) free(blocks[i]);
    expect_given_back(before);
}

/* Freed in any order, of many sizes: what stays behind is then spread over all slabs. */
static void give_back_mixed(size_t size) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    size_t count = PEAK / size;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = size / 2 + (size_t)rand() % size;
        memset(blocks[i] = malloc(bytes), 1, bytes);
    }
    for (size_t left = count; left > 0; left--) {
        size_t at = (size_t)rand() % left;
        free(blocks[at]);
        blocks[at] = blocks[left - 1];
    }
    expect_given_back(before);
}

PROMISE(a_peak_of_about_200_bytes_goes_back_in_any_order) { give_back_mixed(200); }
PROMISE(a_peak_of_about_5_kib_goes_back_in_any_order) { give_back_mixed(5 * KIB); }
PROMISE(a_peak_of_about_20_kib_goes_back_in_any_order) { give_back_mixed(20 * KIB); }

/* So little lies free as a whole that nothing but the slabs themselves says that there is something to give back. */
PROMISE(what_is_scattered_over_all_slabs_goes_back) {
    enum { SIZE = 64, COUNT = 64 * MIB / SIZE, STAY = COUNT / 2000 };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (size_t left = COUNT; left > STAY; left--) {
        size_t at = (size_t)rand() % left;
        free(blocks[at]);
        blocks[at] = blocks[left - 1];
    }
    expect_given_back(before);
}

/* Bytes that the kernel would add if it filled, as it does in time, each huge page that it may and that has a page. */
static size_t fillable_bytes(void) {
    enum { PAGES = 2 * MIB / 4096 };
    static char line[512];
    unsigned char resident[PAGES];
    uintptr_t begin = 0, end = 0;
    size_t bytes = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) begin = (from + 2 * MIB - 1) & -(2 * (uintptr_t)MIB), end = to;
        if (strncmp(line, "VmFlags:", 8) != 0 || !strstr(line, " hg")) continue;
        for (uintptr_t page = begin; page + 2 * MIB <= end; page += 2 * MIB) {
            size_t there = 0;
            HOLDS(mincore((void *)page, 2 * MIB, resident) == 0);
            for (int i = 0; i < PAGES; i++) there += resident[i] & 1;
            if (there != 0) bytes += (PAGES - there) * 4096;
        }
    }
    fclose(maps);
    return bytes;
}

/* One block of so many stays for good; what went back after the first peak goes back after the next one. */
PROMISE(every_peak_goes_back_around_blocks_that_stay) {
    enum { SIZE = 1000, COUNT = PEAK / SIZE, STAYS = 1500 };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT; i++)
            if (i % STAYS != 0 || round == 0) memset(blocks[i] = malloc(SIZE), 1, SIZE);
        for (size_t i = 0; i < COUNT; i++)
            if (i % STAYS != 0) free(blocks[i]);
        expect_given_back(before);
    }
    if (sysconf(_SC_PAGESIZE) == 4096) HOLDS(fillable_bytes() < KEPT_MAX);
}

PROMISE(a_peak_goes_back_around_small_blocks_that_stay) {
    enum { SIZE = 2300 * 1000, COUNT = PEAK / SIZE };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t i = 0; i < COUNT; i++) {
        memset(blocks[i] = malloc(SIZE), 1, SIZE);
        memset(malloc(100 * KIB), 1, 100 * KIB);
    }
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
    expect_given_back(before + COUNT * 100 * KIB);
    if (sysconf(_SC_PAGESIZE) == 4096) HOLDS(fillable_bytes() < KEPT_MAX);
}

PROMISE(a_peak_beside_large_blocks_that_stay_goes_back) {
    for (int i = 0; i < 100; i++) memset(malloc(1 * MIB), 1, 1 * MIB);
    give_back_after(1 * MIB);
}

/* The process is busy meanwhile, though with little: `count` blocks of a size come and go, every 100 ms. */
static void expect_given_back_beside(size_t count, size_t size, long before, long kept_max) {
    for (int waited = 0; waited < WAIT_MS; waited += 100) {
        usleep(100000);
        for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(size), 1, size);
        for (size_t i = 0; i < count; i++) free(blocks[i]);
    }
    HOLDS(resident_bytes() - before < kept_max);
}

static void give_back_beside(size_t count, size_t size) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    peak_of(1 * MIB);
    expect_given_back_beside(count, size, before, KEPT_MAX);
}

PROMISE(a_peak_goes_back_while_a_large_block_comes_and_goes) { give_back_beside(1, 16 * MIB); }
PROMISE(a_peak_goes_back_while_many_blocks_come_and_go) { give_back_beside(60, 200 * KIB); }

/* One that the thread could keep. */
PROMISE(a_peak_goes_back_while_its_thread_goes_on_with_little) {
    enum { KEPT = 100 };
    long before = resident_bytes();
    for (int i = 0; i < KEPT; i++) memset(blocks[i] = malloc(1 * MIB), 1, 1 * MIB);
    char *little = memset(malloc(600 * KIB), 1, 600 * KIB);
    for (int i = 0; i < KEPT; i++) free(blocks[i]);
    free(little); /* the next one takes its place */
    expect_given_back_beside(1, 600 * KIB, before, KEPT * MIB / 10);
}

static void peak_of_mib(size_t mib) {
    size_t count = 0;
    for (size_t bytes = 0, size; bytes < mib * MIB; bytes += size) {
        size = 1000 + next_random() % 29000;
        memset(blocks[count++] = malloc(size), 1, size);
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
}

/* That something is taken again after one peak does not make the next one's blocks worth keeping; nor do bursts make
 * much of them. */
static void keep_little_after(int bursts) {
    enum { LAST = 16 };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    peak_of_mib(40);
    for (size_t size = 100; size < 400; size += 100)
        for (int i = 0; i < 300; i++) free(malloc(size));
    if (bursts == 0) sleep(2);
    for (int i = 0; i < bursts; i++) peak_of_mib(LAST);
    peak_of_mib(LAST);
    expect_at_most(before + LAST * MIB / 3);
}

PROMISE(the_peak_after_a_peak_goes_back) { keep_little_after(0); }
PROMISE(the_last_of_many_peaks_goes_back) { keep_little_after(20); }

PROMISE(a_peak_in_a_forked_child_goes_back) {
    give_back_after(200); /* the parent has had a helper, the child has none of it */
    pid_t child = fork();
    if (child == 0) {
        give_back_after(12 * KIB);
        _exit(0);
    }
    wait_for(child);
}

static void *live_elsewhere(void *size) { return memset(malloc((size_t)size), 1, (size_t)size); }

/* Blocks from 32 MiB on go back at once; what they were must not count as in use for ever. */
PROMISE(a_peak_goes_back_after_many_larger_blocks) {
    pthread_t other;
    memset(blocks, 0, sizeof blocks);
    pthread_create(&other, NULL, live_elsewhere, (void *)(500 * (size_t)MIB));
    pthread_join(other, NULL);
    for (int i = 0; i < 40; i++) free(memset(malloc(40 * MIB), 1, 40 * MIB));
    give_back_after(4 * MIB);
}

/* It is not copied, which would need both at once; what is behind serves others. */
PROMISE(a_giant_that_shrinks_stays_where_it_is) {
    enum { SIZE = 300 * MIB, SHORTER = 100 * MIB };
    char *giant = memset(malloc(SIZE), 1, SIZE), *shorter = realloc(giant, SHORTER);
    HOLDS(shorter == giant && shorter[SHORTER - 1] == 1);
    char *others = memset(malloc(SIZE - SHORTER), 2, SIZE - SHORTER);
    HOLDS(peak_bytes() < SIZE + 32L * MIB);
    HOLDS(shorter[SHORTER - 1] == 1 && others[0] == 2);
    free(others);
    free(shorter);
}

/* What is behind has pages though nobody reached so far: a run is as long as its neighbours, and huge pages fill it. */
PROMISE(blocks_that_shrink_to_less_than_half_leave_nothing) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t i = 0; i < 30; i++) memset(blocks[i] = malloc(10000 * KIB), 1, 10000 * KIB);
    for (size_t i = 0; i < 30; i++) blocks[i] = realloc(blocks[i], 4000 * KIB);
    for (size_t i = 0; i < 30; i++) free(blocks[i]);
    expect_at_most(before + 4 * MIB);
}

/* Holes hold pages beyond the blocks that were in them, as huge pages fill whole regions. */
PROMISE(a_peak_in_holes_goes_back_with_the_rest_of_its_huge_pages) {
    enum { HOLE = 4000 * KIB, STAYS = 600 * KIB, SIZE = 2300 * KIB, COUNT = PEAK / SIZE };
    long before = resident_bytes();
    for (size_t i = 0; i < COUNT; i++) blocks[i] = malloc(HOLE), memset(malloc(STAYS), 1, 1);
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
    malloc_trim(0);
    for (int peaks = 0; peaks < 2; peaks++) {
        peak_of(SIZE);
        expect_given_back(before);
    }
}
