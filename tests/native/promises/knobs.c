/* Each knob does what it says: what one value brings about, another does not. Counted, and without a helper. */
#include "../library.h"
#include "../peak.h"
#include <malloc.h>
#include <sys/mman.h>

enum { MUCH = 64 * MIB };

static size_t held;

/* So many more are taken and touched, and stay. */
static void take(size_t size, size_t count) {
    for (size_t i = 0; i < count; i++) memset(blocks[held++] = malloc(size), 1, size);
}

static void drop_all(void) {
    while (held > 0) free(blocks[--held]);
}

static int64_t purged_by_a_peak(size_t size) {
    int64_t before = counter("purged_bytes");
    take(size, MUCH / size);
    drop_all();
    return counter("purged_bytes") - before;
}

PROMISE(a_thread_purges_inline_once_a_batch_has_gathered) {
    set_knob("background", 0);
    set_knob("idle_return", 0);
    set_knob("purge_delay_ms", 0);
    set_knob("purge_batch_bytes", 1024 * MIB);
    HOLDS(purged_by_a_peak(300 * KIB) == 0);
    set_knob("purge_batch_bytes", 4 * MIB);
    HOLDS(purged_by_a_peak(300 * KIB) > 0);
}

PROMISE(the_helper_starts_once_so_much_was_taken) {
    set_knob("background_bytes", 1024 * MIB);
    take(5 * KIB, MUCH / (5 * KIB));
    HOLDS(threads_here() == 1);
    set_knob("background_bytes", 2 * MUCH);
    take(5 * KIB, MUCH / (5 * KIB) / 2);
    HOLDS(threads_here() == 1);
    take(5 * KIB, MUCH / (5 * KIB));
    HOLDS(threads_here() == 2);
}

/* Mappings of which somebody asked for huge pages. */
static int huge_mappings(void) {
    static char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) count += strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg") != NULL;
    fclose(maps);
    return count;
}

static void ask_for_one(void) {
    void *own = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(own, 4 * MIB, MADV_HUGEPAGE);
    if (huge_mappings() != 1) UNTRIED("the kernel does not say who asked for huge pages");
    munmap(own, 4 * MIB);
}

PROMISE(nobody_asks_for_huge_pages_where_they_are_not_wanted) {
    ask_for_one();
    set_knob("background", 0);
    set_knob("huge_pages", 0);
    take(200, MUCH / 200);
    take(4 * MIB, 16);
    char *vector = malloc(100);
    for (size_t size = 1 * MIB; size <= 32 * MIB; size *= 2) memset(vector = realloc(vector, size), 1, size);
    HOLDS(huge_mappings() == 0);
    set_knob("huge_pages", 1);
    take(200, MUCH / 200);
    HOLDS(huge_mappings() > 0);
}

PROMISE(slabs_ask_for_huge_pages_from_a_size_of_the_heap_on) {
    ask_for_one();
    set_knob("background", 0);
    set_knob("huge_after_bytes", 1024 * MIB);
    take(200, MUCH / 200);
    HOLDS(huge_mappings() == 0);
    set_knob("huge_after_bytes", MUCH);
    take(200, MUCH / 200);
    HOLDS(huge_mappings() > 0);
}

/* Of each row of 8 slabs one block stays, so what lies free in a superslab is shorter than it. */
PROMISE(short_ranges_are_not_worth_a_call) {
    enum { SIZE = 1000, ROW = 8 * 64 * KIB };
    set_knob("background", 0);
    set_knob("purge_range_bytes", 2 * MIB);
    take(SIZE, MUCH / SIZE);
    for (uintptr_t row = 0; held > 0; row = (uintptr_t)blocks[--held] / ROW)
        if ((uintptr_t)blocks[held - 1] / ROW == row) free(blocks[held - 1]);
    malloc_trim(0);
    HOLDS(counter("purged_bytes") < MUCH / 8);
    set_knob("purge_range_bytes", 64 * KIB);
    malloc_trim(0);
    HOLDS(counter("purged_bytes") > MUCH / 2);
}

PROMISE(a_block_grows_in_a_window_where_it_may) {
    set_knob("growth_windows", 0);
    HOLDS(span_of(realloc(malloc(40 * KIB), 8 * MIB)).kind == HAK_SPAN_RUN);
    set_knob("growth_windows", 1);
    HOLDS(span_of(realloc(malloc(40 * KIB), 8 * MIB)).kind == HAK_SPAN_WINDOW);
}

PROMISE(the_depot_keeps_what_it_may) {
    set_knob("background", 0);
    set_knob("depot_bytes", 0);
    take(200, MUCH / 200);
    drop_all();
    HOLDS(counter("depot_pushes") == 0);
    set_knob("depot_bytes", 16 * MIB);
    take(200, MUCH / 200);
    drop_all();
    HOLDS(counter("depot_pushes") > 0 && counter("cached_bytes") > 8 * MIB && counter("cached_bytes") < 24 * MIB);
}

static int64_t superslabs_for_a_peak(void) {
    int64_t before = counter("superslabs_taken");
    take(256, MUCH / 256);
    return counter("superslabs_taken") - before;
}

PROMISE(superslabs_have_the_size_they_are_to_have) {
    set_knob("background", 0);
    set_knob("superslab_bytes", 1 * MIB);
    int64_t small = superslabs_for_a_peak();
    set_knob("superslab_bytes", 2 * MIB);
    int64_t large = superslabs_for_a_peak();
    HOLDS(small > MUCH / (1 * MIB) - 4 && small < MUCH / (1 * MIB) + 4);
    HOLDS(large > MUCH / (2 * MIB) - 4 && large < MUCH / (2 * MIB) + 4);
}
