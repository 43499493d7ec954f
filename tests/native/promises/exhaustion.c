/* Promises 2 and 9: at the end of memory, and at the end of mappings, calls are refused with ENOMEM, nothing is lost,
 * and what was freed serves every size again. */
#include "../library.h"
#include "../serve.h"
#include <sys/mman.h>

enum { LIMIT = 256 * MIB, LATE_LIMIT = 512 * MIB };

extern char **environ;
static const size_t sizes[] = {16, 48, 200, 1000, 5000, 12 * KIB, 40 * KIB, 300 * KIB, 1 * MIB, 5 * MIB, 20 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };
static size_t most = LIMIT; /* bytes in force */

/* Takes blocks until one is refused; they form a list through their first words. */
static long take_all(size_t size, void **list) {
    long count = 0;
    errno = 0;
    for (void **block; (block = malloc(size)) != NULL; count++, errno = 0) {
        *block = *list;
        *list = block;
        HOLDS((size_t)count * size <= most);
    }
    HOLDS(errno == ENOMEM);
    return count;
}

static void free_all(void *list) {
    while (list) {
        void *next = *(void **)list;
        free(list);
        list = next;
    }
}

static long exhaust(size_t size) {
    void *list = NULL;
    long count = take_all(size, &list);
    if (list) {
        void *next = *(void **)list;
        errno = 0;
        HOLDS(realloc(list, opaque(most)) == NULL && errno == ENOMEM && *(void **)list == next);
        errno = 0;
        HOLDS(calloc(opaque(most / 16), 16) == NULL && errno == ENOMEM);
        HOLDS(posix_memalign(&next, 4096, opaque(most)) == ENOMEM);
    }
    free_all(list);
    return count;
}

STEP(limited_every_size_is_served_again) {
    long first[SIZES];
    for (int i = 0; i < SIZES; i++) HOLDS((first[i] = exhaust(sizes[i])) > 0);
    for (int i = SIZES - 1; i >= 0; i--) HOLDS(exhaust(sizes[i]) > first[i] / 2);
    for (int i = 0; i < SIZES; i++) HOLDS(exhaust(sizes[i]) > first[i] / 2);
}

/* A block that shrinks needs no memory. */
STEP(limited_a_block_may_shrink_at_the_end_of_memory) {
    static char *blocks[SIZES];
    void *list = NULL;
    for (int i = 0; i < SIZES; i++) blocks[i] = malloc(sizes[i]);
    for (int i = SIZES - 1; i >= 0; i--) take_all(sizes[i], &list);
    for (int i = 0; i < SIZES; i++) {
        errno = 0;
        HOLDS((blocks[i] = realloc(blocks[i], sizes[i] / 3)) != NULL && errno == 0);
    }
    free_all(list);
}

/* Memory ends just when a size that was used before needs more than it had. */
STEP(limited_sizes_that_were_used_before_are_refused) {
    void *small = NULL, *large = NULL;
    for (size_t size = 16; size <= 1 * KIB; size += 16) {
        for (size_t bytes = 0; bytes < 64 * KIB; bytes += size) {
            void **block = malloc(size);
            HOLDS(block != NULL);
            *block = small;
            small = block;
        }
    }
    for (size_t size = 1 * MIB; size >= 8 * KIB; size /= 2) take_all(size, &large);
    for (size_t size = 16; size <= 1 * KIB; size += 16) take_all(size, &small);
    free_all(small);
    free_all(large);
    serve_every_size(NULL);
}

static void *exhaust_small(void *unused) {
    exhaust(64);
    return unused;
}

STEP(limited_threads_share_what_is_left) {
    pthread_t threads[4];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) HOLDS(pthread_create(&threads[i], NULL, exhaust_small, NULL) == 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < SIZES; i++) HOLDS(exhaust(sizes[i]) > 0);
    }
}

static void limit(void) { HOLDS(setrlimit(RLIMIT_AS, &(struct rlimit){LIMIT, LIMIT}) == 0); }

PROMISE(after_exhaustion_every_size_is_served_again) {
    keep_in_new_process("limited_every_size_is_served_again", limit, environ);
}

PROMISE(blocks_may_shrink_at_the_end_of_memory) {
    keep_in_new_process("limited_a_block_may_shrink_at_the_end_of_memory", limit, environ);
}

PROMISE(at_the_end_of_memory_sizes_that_were_used_before_are_refused) {
    keep_in_new_process("limited_sizes_that_were_used_before_are_refused", limit, environ);
}

PROMISE(after_exhaustion_by_threads_every_size_is_served_again) {
    keep_in_new_process("limited_threads_share_what_is_left", limit, environ);
}

/* A program that limits itself while it runs: what is left is for all, not for blocks alone. */
static void limit_late(void) {
    serve_every_size(NULL);
    most = LATE_LIMIT;
    HOLDS(setrlimit(RLIMIT_AS, &(struct rlimit){LATE_LIMIT, LATE_LIMIT}) == 0);
}

PROMISE(under_a_late_limit_threads_start) {
    limit_late();
    serve_in_threads();
}

PROMISE(under_a_late_limit_others_map_memory) {
    limit_late();
    HOLDS(mmap(NULL, 1 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
}

PROMISE(under_a_late_limit_libraries_load) {
    static const char *const library = "libm.so.6";
    if (dlopen(library, RTLD_NOW | RTLD_NOLOAD) != NULL) UNTRIED("the library is there already");
    limit_late();
    HOLDS(dlopen(library, RTLD_NOW) != NULL);
}

/* Of limits that are set late and are little, nearly all is for blocks: the allocator's own tables are as long as what
 * it has served. */
static void expect_most_for_blocks(int resource) {
    void *list = NULL;
    free(malloc(opaque(1)));
    HOLDS(setrlimit(resource, &(struct rlimit){100 * MIB, 100 * MIB}) == 0);
    most = 100 * MIB;
    HOLDS(take_all(1 * MIB, &list) >= 72);
    free_all(list);
}

PROMISE(a_late_limit_of_addresses_is_for_blocks) { expect_most_for_blocks(RLIMIT_AS); }
PROMISE(a_late_limit_of_data_is_for_blocks) { expect_most_for_blocks(RLIMIT_DATA); }

/* Each of the allocator's regions is as long as a part of a limit, and one block may be longer than any of them. */
PROMISE(what_was_freed_under_a_limit_serves_as_one_long_block) {
    void *list = NULL;
    HOLDS(setrlimit(RLIMIT_AS, &(struct rlimit){LATE_LIMIT, LATE_LIMIT}) == 0);
    for (long i = 0; i < LATE_LIMIT / 4 * 3 / (4 * KIB); i++) {
        void **block = malloc(4 * KIB);
        HOLDS(block != NULL);
        *block = list;
        list = block;
    }
    free_all(list);
    for (int round = 0; round < 3; round++) {
        char *block = malloc(LATE_LIMIT / 4 * 3);
        HOLDS(block != NULL);
        block[0] = block[LATE_LIMIT / 4 * 3 - 1] = 1;
        HOLDS(malloc(opaque(LATE_LIMIT / 4 * 3)) == NULL && errno == ENOMEM);
        free(block);
        most = LATE_LIMIT;
        list = NULL;
        HOLDS(take_all(4 * KIB, &list) > LATE_LIMIT / (4 * KIB) / 2);
        free_all(list);
    }
}

PROMISE(under_a_late_limit_memory_ends) {
    limit_late();
    void *list = NULL;
    long count = take_all(1 * MIB, &list);
    HOLDS(count > LATE_LIMIT / MIB / 2);
    free_all(list);
    serve_every_size(NULL);
}

PROMISE(after_exhaustion_under_a_late_limit_every_size_is_served_again) {
    limit_late();
    limited_every_size_is_served_again();
}

PROMISE(at_the_end_of_memory_aligned_blocks_are_served_from_what_was_freed) {
    enum { FREED = 12, ALIGNMENT = 128 * KIB };
    limit_late();
    void *list = NULL, *block;
    take_all(1 * MIB, &list);
    for (int i = 0; i < FREED; i++) {
        void *next = *(void **)list;
        free(list);
        list = next;
    }
    HOLDS(posix_memalign(&block, ALIGNMENT, FREED / 2 * MIB) == 0);
    free_all(list);
}

/* Vectors grow in address space of their own, which is little now. */
PROMISE(under_a_late_limit_growing_vectors_leave_room) {
    enum { VECTORS = 12 };
    static char *vectors[VECTORS];
    limit_late();
    for (size_t size = 1 * MIB; size <= 8 * MIB; size *= 2)
        for (int i = 0; i < VECTORS; i++) HOLDS((vectors[i] = realloc(vectors[i], size)) != NULL);
    serve_in_threads();
    for (int i = 0; i < VECTORS; i++) free(vectors[i]);
}

/* A limit of data is one of what may be written, the allocator's own tables included. */
STEP(limited_data_is_for_blocks) {
    void *list = NULL;
    most = 100 * MIB;
    HOLDS(take_all(1 * MIB, &list) >= 50);
    free_all(list);
}

static void limit_what_is_written(void) {
    HOLDS(setrlimit(RLIMIT_DATA, &(struct rlimit){100 * MIB, 100 * MIB}) == 0);
}

PROMISE(a_limit_of_data_is_for_blocks) {
    keep_in_new_process("limited_data_is_for_blocks", limit_what_is_written, environ);
}

/* Vectors that cannot grow where they lie, while address space is scarce: 800 of them, a quarter of it in all. */
STEP(limited_many_vectors_grow) {
    enum { VECTORS = 800 };
    static char *vectors[VECTORS];
    for (size_t size = 20000; size < 600 * KIB; size *= 2)
        for (int i = 0; i < VECTORS; i++) HOLDS((vectors[i] = realloc(vectors[i], size)) != NULL);
    for (int i = 0; i < VECTORS; i++) free(vectors[i]);
}

static void limit_to_2_gb(void) {
    HOLDS(setrlimit(RLIMIT_AS, &(struct rlimit){2000000000, 2000000000}) == 0);
}

PROMISE(many_vectors_grow_in_little_address_space) {
    keep_in_new_process("limited_many_vectors_grow", limit_to_2_gb, environ);
}

/* Half of what is free has gone back to the kernel and half has not: together it is enough. */
STEP(limited_free_halves_serve_one_block) {
    enum { PIECES = 800 };
    static char *pieces[PIECES];
    int count = 0;
    while (count < PIECES && (pieces[count] = malloc(1 * MIB)) != NULL) memset(pieces[count++], 1, 1 * MIB);
    for (int i = 0; i < count; i += 2) free(pieces[i]);
    for (int i = 0; i < 12; i++) {
        usleep(150000);
        free(malloc(40000));
    }
    for (int i = 1; i < count; i += 2) free(pieces[i]);
    char *whole = malloc(120 * MIB);
    HOLDS(whole != NULL);
    free(whole);
}

PROMISE(what_is_free_serves_a_large_block) {
    keep_in_new_process("limited_free_halves_serve_one_block", limit_to_2_gb, environ);
}

static void limit_data(void) {
    HOLDS(setrlimit(RLIMIT_DATA, &(struct rlimit){700 * MIB, 700 * MIB}) == 0);
}

STEP(limited_refusals_cost_nothing) {
    for (int i = 0; i < 8; i++) HOLDS(malloc(opaque(800 * MIB)) == NULL);
    char *block = malloc(500 * MIB);
    HOLDS(block != NULL);
    free(block);
}

PROMISE(a_refusal_leaves_the_limit_as_it_was) {
    keep_in_new_process("limited_refusals_cost_nothing", limit_data, environ);
}

static void limit_data_to_64_mib(void) {
    HOLDS(setrlimit(RLIMIT_DATA, &(struct rlimit){64 * MIB, 64 * MIB}) == 0);
}

STEP(limited_data_starts) { serve_every_size(NULL); }

PROMISE(a_program_starts_with_little_data) {
    keep_in_new_process("limited_data_starts", limit_data_to_64_mib, environ);
}

/* A cache that frees something whenever it is refused lives at its limit. */
STEP(limited_refusals_take_few_calls) {
    enum { REFUSALS = 200 };
    void *list = NULL;
    take_all(60 * KIB, &list);
    int64_t before = counter("sys_mmap");
    for (int i = 0; i < REFUSALS; i++) HOLDS(malloc(opaque(60 * KIB)) == NULL);
    HOLDS(counter("sys_mmap") - before < 20 * REFUSALS);
    free_all(list);
}

PROMISE(a_refusal_takes_few_system_calls) {
    (void)library("hak_stat_read");
    keep_in_new_process("limited_refusals_take_few_calls", limit_data_to_64_mib, environ);
}

PROMISE(few_mappings_are_needed) {
    enum { BLOCKS = 12000 };
    static void *blocks[BLOCKS];
    int before = mappings();
    for (int i = 0; i < BLOCKS; i++) HOLDS((blocks[i] = malloc((i % 8 + 1) * 33 * KIB)) != NULL);
    for (int i = 0; i < BLOCKS; i += 2) free(blocks[i]);
    HOLDS(mappings() - before < 8000);
    for (int i = 1; i < BLOCKS; i += 2) free(blocks[i]);
}

/* Splits mappings until the kernel allows no more (vm.max_map_count). */
static void *use_up_mappings(size_t *length) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *length = page * 200000;
    char *region = mmap(NULL, *length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HOLDS(region != MAP_FAILED);
    size_t at = 0;
    while (at < *length && mprotect(region + at, page, PROT_READ) == 0) at += 2 * page;
    if (at >= *length) UNTRIED("this kernel allows too many mappings");
    return region;
}

PROMISE(the_end_of_mappings_is_survived) {
    enum { HELD = 100 };
    void *held[SIZES][HELD];
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < HELD; j++) held[i][j] = malloc(sizes[i] > 2 * MIB && j > 10 ? 1 : sizes[i]);
    size_t length;
    void *region = use_up_mappings(&length);
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < HELD; j += 2) free(held[i][j]); /* an unmap in the middle is refused now */
    for (int i = 0; i < SIZES; i++) {
        errno = 0;
        char *block = malloc(sizes[i]);
        HOLDS(block != NULL || errno == ENOMEM);
        if (block) block[0] = block[sizes[i] - 1] = 1;
        free(block);
    }
    munmap(region, length);
    for (int i = 0; i < SIZES; i++)
        for (int j = 1; j < HELD; j += 2) free(held[i][j]);
    serve_every_size(NULL);
    serve_in_threads();
}

static _Atomic int has_freed, may_end;

/* Frees most of 64 MB, all over it, and goes on with some of it. */
static void *busy(void *unused) {
    enum { COUNT = 1 << 20, MORE = 50000 };
    char **blocks = malloc(COUNT * sizeof *blocks), **more = malloc(MORE * sizeof *more);
    for (size_t i = 0; i < COUNT; i++) blocks[i] = malloc(64);
    for (size_t i = COUNT; i-- > 1;) {
        size_t other = (size_t)random() % (i + 1);
        char *block = blocks[other];
        blocks[other] = blocks[i];
        blocks[i] = block;
    }
    for (size_t i = COUNT / 8; i < COUNT; i++) free(blocks[i]);
    while (!may_end) {
        for (size_t i = 0; i < MORE; i++) more[i] = malloc(64);
        has_freed = 1;
        for (size_t i = 0; i < MORE; i++) free(more[i * 7919 % MORE]);
    }
    return unused;
}

PROMISE(at_the_end_of_memory_what_a_busy_thread_freed_serves_others) {
    pthread_t thread;
    struct rlimit limit = {1, 1};
    HOLDS(pthread_create(&thread, NULL, busy, NULL) == 0);
    while (!has_freed) usleep(1000);
    HOLDS(setrlimit(RLIMIT_DATA, &limit) == 0);
    long count = 0;
    for (void **list = NULL, **block; (block = malloc(64)) != NULL; list = block, count++) *block = list;
    HOLDS(count * 64 > 70 * MIB);
    may_end = 1;
    HOLDS(pthread_join(thread, NULL) == 0);
}

/* What it left lies before memory that nobody had, and is as good. */
PROMISE(under_a_limit_a_freed_block_makes_room_for_a_longer_one) {
    struct rlimit limit = {2000 * (rlim_t)MIB, 2000 * (rlim_t)MIB};
    free((void *)opaque((uintptr_t)malloc(1000)));
    HOLDS(setrlimit(RLIMIT_AS, &limit) == 0);
    for (size_t size = 1000; size <= 1600; size += 100) {
        char *block = malloc(size * MIB);
        HOLDS(block != NULL);
        block[0] = block[size * MIB - 1] = 1;
        free(block);
    }
}

/* A large block comes and goes, and each time a small one stays: the large one finds its place again. */
PROMISE(small_blocks_break_no_room_for_giants) {
    static const size_t giants[] = {70 * (size_t)MIB, 2048 * (size_t)MIB};
    for (int i = 0; i < 2; i++)
        for (int round = 0; round < 4000; round++) {
            char *giant = malloc(giants[i]);
            HOLDS(giant != NULL);
            giant[0] = giant[giants[i] - 1] = 1;
            free(giant);
            HOLDS(malloc(40000) != NULL);
        }
}

/* Holes between them are as long as they are, and none is overlooked. */
PROMISE(giants_on_wide_boundaries_find_their_places_again) {
    enum { COUNT = 150 };
    static void *giants[COUNT];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) HOLDS(posix_memalign(&giants[i], 1024 * (size_t)MIB, 600 * (size_t)MIB) == 0);
        for (int i = 0; i < COUNT; i++) free(giants[i]);
    }
}

/* A small rest of each stays: it is moved, and the giant's place serves the next one. */
PROMISE(giants_that_shrink_to_little_leave_their_places) {
    for (int i = 0; i < 3000; i++) {
        char *giant = malloc(128 * MIB);
        HOLDS(giant != NULL);
        giant[0] = 1;
        HOLDS(realloc(giant, 1 * MIB) != NULL);
    }
}
