/* Where the kernel maps, and what of it the kernel refuses, is its own affair: blocks are as good as ever. */
#include "../library.h"
#include "../serve.h"
#include "../kernel.h"
#include <linux/futex.h>
#include <stdbool.h>
#include <sys/personality.h>

extern char **environ;
static _Atomic int refusing, refused, refusing_advice, refusing_access, refusing_sleep, wakes_refused;

enum { COLLAPSE = 25 /* MADV_COLLAPSE */ };
static _Atomic int moves, failing_moves, slow_moves, moved_by_two, moved_late;
static _Atomic uintptr_t failed_at;
static void (*while_purging)(uintptr_t place); /* called once, when memory is next given back */
static uintptr_t purged_at;
static bool filled_again; /* may the kernel fill what was given back then? */

/* A kernel that moves memory into huge pages (it says so, and does nothing): `failing_moves` times not, as for a page
 * that is in another thread's hands; where moves are slow, it is seen whether others have to do with the same memory. */
static long move(uintptr_t place) {
    static _Atomic uintptr_t in_work[64];
    if (failing_moves > 0) {
        failing_moves--;
        failed_at = place;
        return kernel_says(EAGAIN);
    }
    moved_late |= place == failed_at;
    for (int i = 0; slow_moves && i < 64; i++) moved_by_two |= in_work[i] == place;
    _Atomic uintptr_t *mine = &in_work[moves++ % 64];
    *mine = place;
    if (slow_moves) usleep(20000);
    *mine = 0;
    return 0;
}

/* Where the kernel may choose the place of something large, or of what nobody may touch, by which the library sees where
 * it maps, it is asked for an address that ends in 46 zeros; the heap, there or a sixteenth below, begins at one that
 * ends in 38. While `refusing`, what is short, and so no memory for blocks, is refused; while `refusing_advice`, what a
 * kernel without huge pages refuses, any kernel of locked memory, or a filter; while `refusing_access`, access to what
 * was reserved; while `refusing_sleep`, to sleep and to wake. */
static long before_kernel(long number, long a, long b, long c, long d, long e, long f) {
    if (number == SYS_madvise && c == COLLAPSE && !refusing_advice) return move((uintptr_t)a);
    if (number == SYS_madvise && c == MADV_DONTNEED && while_purging != NULL) {
        void (*meanwhile)(uintptr_t) = while_purging;
        while_purging = NULL;
        meanwhile(purged_at = (uintptr_t)a);
    }
    bool wants = c == MADV_HUGEPAGE, about = purged_at - (uintptr_t)a < (uintptr_t)b;
    if (number == SYS_madvise && about && (wants || c == MADV_NOHUGEPAGE)) filled_again = wants;
    if (number == SYS_futex && refusing_sleep) {
        wakes_refused += b == FUTEX_WAKE_PRIVATE;
        return kernel_says(EPERM);
    }
    if (number == SYS_mmap && (b >= 64 * MIB || c == PROT_NONE) && a == 0) a = (long)1 << 46;
    int maps = number == SYS_mmap && refusing && b <= 1 * MIB, opens = number == SYS_mprotect && refusing_access;
    int tells = (number == SYS_madvise || number == SYS_mincore || number == SYS_prlimit64) && refusing_advice;
    if (!maps && !opens && !tells) return kernel(number, a, b, c, d, e, f);
    refused = 1;
    return kernel_says(tells ? EINVAL : ENOMEM);
}

PROMISE(free_of_null_does_nothing_wherever_the_heap_lies) {
    void *held[64];
    for (int i = 0; i < 64; i++) held[i] = malloc((size_t)i * 16 + 1); /* what held them has room now */
    for (int i = 0; i < 100; i++) free((void *)opaque(0));
    for (int i = 0; i < 64; i++) free(held[i]);
}

/* No bound tells the blocks of a unit that begins at a multiple of 256 GiB, for NULL would lie in it. Where addresses are
 * not random a heap of 200 MB has one; a sandbox may not let us ask for that. */
PROMISE(blocks_of_a_unit_without_a_bound_come_home) {
    enum { COUNT = 3200000 };
    static char *blocks[COUNT];
    if ((personality(0xffffffff) & ADDR_NO_RANDOMIZE) == 0 && personality(ADDR_NO_RANDOMIZE) != -1)
        execl("/proc/self/exe", "mappings", promise_name, NULL);
    for (size_t i = 0; i < COUNT; i++) blocks[i] = malloc(64);
    for (size_t i = 0; i < COUNT; i++) {
        size_t other = i + (size_t)random() % (COUNT - i);
        char *block = blocks[other];
        blocks[other] = blocks[i];
        free(block);
    }
}

/* Takes as many blocks as there are places, each of its own. */
static void take(size_t **blocks, size_t count, size_t size) {
    for (size_t i = 0; i < count; i++) {
        HOLDS((blocks[i] = malloc(size)) != NULL);
        *blocks[i] = i;
    }
    for (size_t i = 0; i < count; i++) HOLDS(*blocks[i] == i);
}

STEP(refused_mappings_lose_no_block_and_give_none_twice) {
    enum { MANY = 1100, SOME = 300 };
    static size_t *many[MANY], *some[SOME];
    for (size_t size = 1152; size < 4 * KIB; size += 512) { /* a few of each: these magazines are narrow still */
        take(some, 40, size);
        for (int i = 0; i < 40; i++) free(some[i]);
    }
    refusing = 1;
    errno = 0;
    for (size_t size = 16; size <= 32 * KIB; size += size < 1 * KIB ? 16 : size < 4 * KIB ? 64 : 1 * KIB) {
        take(many, MANY, size);
        for (int i = 0; i < MANY; i++) {
            free(many[i]);
            if (i % 64 != 0) continue;
            take(some, SOME, size);
            for (int j = 0; j < SOME; j++) free(some[j]);
        }
        HOLDS(errno == 0);
    }
    if (!refused) UNTRIED("this allocator maps nothing short");
}

PROMISE(while_short_mappings_are_refused_no_block_is_lost_or_given_twice) {
    setenv("HAKMEM_MAGAZINE_BYTES", "16M", 1); /* magazines of every class may be long, so their slots need memory */
    keep_in_new_process("refused_mappings_lose_no_block_and_give_none_twice", NULL, environ);
}

/* The end of the mapping that a block lies in. */
static char *end_of_mapping(const void *block) {
    static char text[64 * KIB];
    int maps = open("/proc/self/maps", O_RDONLY);
    for (ssize_t length, has = 0; (length = read(maps, text + has, sizeof text - 1 - (size_t)has)) > 0;) has += length;
    close(maps);
    for (char *line = text, *rest; *line != 0; line = strchr(line, '\n') + 1) {
        uintptr_t begin = strtoull(line, &rest, 16), end = strtoull(rest + 1, NULL, 16);
        if ((uintptr_t)block >= begin && (uintptr_t)block < end) return (char *)end;
    }
    return NULL;
}

static void grow_around_a_mapping(size_t distance) {
    enum { BLOCKS = 300, LENGTH = 64 * KIB };
    static char *blocks[BLOCKS];
    char *place = end_of_mapping(blocks[0] = malloc(1 * MIB));
    HOLDS(place != NULL);
    char *others = mmap(place + distance, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (others != place + distance) UNTRIED("nothing else can be mapped behind the heap");
    memset(others, 7, LENGTH);
    for (int i = 1; i < BLOCKS; i++) {
        size_t size = i == 1 ? 200 * MIB : (size_t)1 * MIB;
        HOLDS((blocks[i] = malloc(size)) != NULL);
        HOLDS(blocks[i] + size <= others || blocks[i] >= others + LENGTH);
        memset(blocks[i], 1, 1 * MIB);
    }
    serve_every_size(NULL);
    serve_in_threads();
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    for (int i = 0; i < LENGTH; i++) HOLDS(others[i] == 7);
}

PROMISE(the_heap_grows_around_a_mapping_at_its_end) { grow_around_a_mapping(0); }

PROMISE(the_heap_grows_around_a_mapping_on_its_way) { grow_around_a_mapping(41 * MIB + 64 * KIB); }

PROMISE(the_heap_grows_around_many_mappings) {
    enum { MAPPINGS = 8, LENGTH = 64 * KIB };
    for (int i = 0; i < MAPPINGS; i++) {
        errno = 0;
        char *block = malloc(40 * MIB); /* more than is left before the last mapping */
        HOLDS(block != NULL && errno == 0);
        char *place = end_of_mapping(block);
        if (mmap(place, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != place)
            UNTRIED("nothing else can be mapped behind the heap");
    }
    serve_every_size(NULL);
}

PROMISE(where_advice_is_refused_who_is_served_keeps_errno) {
    refusing_advice = 1;
    for (size_t size = 16; size <= 256 * MIB; size *= 4) {
        errno = 0;
        char *block = malloc(size), *zeroed = calloc(1, size);
        HOLDS(block != NULL && zeroed != NULL && zeroed[size - 1] == 0 && errno == 0);
        block[0] = block[size - 1] = 1;
        block = realloc(block, size + size / 2);
        HOLDS(block != NULL && block[size - 1] == 1 && errno == 0);
        HOLDS((block = realloc(block, size)) != NULL && errno == 0);
        free(zeroed);
        free(block);
    }
    if (!refused) UNTRIED("this allocator gives the kernel no advice");
}

PROMISE(a_block_that_may_not_grow_where_it_lies_moves_and_keeps_errno) {
    for (size_t size = 1 * MIB; size <= 64 * MIB; size *= 4) {
        char *block = malloc(size);
        HOLDS(block != NULL && (block = realloc(block, size + size / 4)) != NULL); /* to where it can grow */
        memset(block, 7, size);
        refusing_access = 1;
        errno = 0;
        block = realloc(block, size * 8);
        HOLDS(block != NULL && errno == 0 && block[0] == 7 && block[size - 1] == 7);
        refusing_access = 0;
        free(block);
    }
    if (!refused) UNTRIED("this allocator grows blocks without asking for access");
}

/* Takes and frees blocks for which threads wait for each other, if some refuse to sleep. */
static void *trade(void *unused) {
    for (int i = 0; i < 20000 || (wakes_refused == 0 && i < 1000000); i++) {
        errno = 0;
        char *block = malloc(5 * MIB);
        HOLDS(block != NULL && errno == 0);
        free(block);
        HOLDS(errno == 0);
    }
    return unused;
}

PROMISE(threads_that_may_neither_sleep_nor_wake_others_keep_errno) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    refusing_sleep = 1;
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, trade, NULL) == 0);
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
    if (wakes_refused == 0) UNTRIED("this allocator wakes nobody");
}

/* Fills small blocks of so many bytes; they stay. */
static void *fill(void *bytes) {
    for (size_t filled = 0; filled < (uintptr_t)bytes; filled += 1000) memset(malloc(1000), 1, 1000);
    return NULL;
}

/* Leaves holes, so that the heap is not one that only grows, whose superslabs get huge pages from the start. */
static void punch(void) {
    enum { SIZE = 2000, COUNT = 4 * MIB / SIZE };
    static char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (int i = 0; i < COUNT; i += 2) free(blocks[i]);
}

PROMISE(memory_goes_into_huge_pages_though_the_kernel_fails_for_once) {
    punch();
    fill((void *)(2l * MIB));
    failing_moves = 1;
    fill((void *)(7l * MIB));
    if (failing_moves == 1) UNTRIED("this allocator moves nothing into huge pages");
    HOLDS(moves >= 3);
}

PROMISE(what_the_kernel_failed_to_move_when_it_was_half_filled_is_moved_once_it_is_full) {
    punch();
    fill((void *)(13l * MIB)); /* beyond half of huge_after_bytes */
    failing_moves = 1;
    fill((void *)(5l * MIB));
    if (failing_moves == 1) UNTRIED("this allocator moves nothing into huge pages");
    fill((void *)(16l * MIB));
    HOLDS(moved_late);
}

PROMISE(a_kernel_that_moves_nothing_into_huge_pages_is_asked_a_few_times) {
    punch();
    failing_moves = 1000;
    fill((void *)(11l * MIB));
    HOLDS(failing_moves >= 1000 - 5);
}

PROMISE(threads_that_grow_do_not_move_the_same_memory) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    punch();
    slow_moves = 1;
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, fill, (void *)(6l * MIB)) == 0);
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
    HOLDS(!moved_by_two);
}

enum { UNIT = 64 * KIB, REGION = 2 * MIB, UNIT_SIZE = 8 * KIB };

/* Takes blocks until one lies ten units further. */
static void take_what_else_is_free(uintptr_t place) {
    for (char *block = NULL; (uintptr_t)block / UNIT != place / UNIT + 10;) memset(block = malloc(UNIT_SIZE), 1, UNIT_SIZE);
}

/* Somebody takes the rest of a region's free memory while a part of it goes back: it is not full all the same. */
PROMISE(what_goes_back_while_its_region_fills_is_not_filled_by_the_kernel) {
    enum { COUNT = 8 * REGION / UNIT_SIZE };
    static char *blocks[COUNT];
    set_knob("background", 0);
    set_knob("huge_after_bytes", 0);
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(UNIT_SIZE), 1, UNIT_SIZE);
    uintptr_t region = (uintptr_t)blocks[COUNT * 3 / 4] / REGION * REGION;
    for (int i = 0; i < COUNT; i++) {
        uintptr_t unit = ((uintptr_t)blocks[i] - region) / UNIT;
        if (unit == 4 || unit == 14) free(blocks[i]);
    }
    while_purging = take_what_else_is_free;
    malloc_trim(0);
    HOLDS(purged_at / REGION * REGION == region);
    HOLDS(!filled_again);
}
