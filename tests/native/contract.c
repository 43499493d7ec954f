/* The contract of the malloc family, as C17, POSIX.1-2017 and the GNU manual state it. One promise a paragraph;
 * whatever answers malloc in this process is judged. */
#include "serve.h"
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>

enum { SMALL_MAX = 4 * KIB };

static int is_aligned(const void *block, size_t alignment) { return (uintptr_t)block % alignment == 0; }

/* The alignment that an object of this size may need: the largest power of two it can hold, at most max_align_t. */
static size_t natural_alignment(size_t size) {
    size_t alignment = _Alignof(max_align_t);
    while (alignment > size && alignment > 1) alignment /= 2;
    return alignment;
}

/* Byte i of a block filled with `seed`; neighbours of equal size get different seeds. No page looks like the next one,
 * nor 64 KiB like the next 64. */
static unsigned char expected(size_t i, unsigned seed) {
    return (unsigned char)((i + (i >> 8) + (i >> 16)) * 31 + seed * 167 + 1);
}

static void fill(void *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) ((unsigned char *)block)[i] = expected(i, seed);
}

static int is_filled(const void *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)block)[i] != expected(i, seed)) return 0;
    return 1;
}

static int is_zero(const void *block, size_t size) {
    const unsigned char *bytes = block;
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

/* Sizes at and around every power of two up to 16 MiB: 0, 1, 2, 3, 4, 5, 7, 8, 9, ... Ends with SIZE_MAX. */
static size_t edge_size(int index) {
    size_t power = (size_t)1 << (index / 3);
    return index == 0 ? 0 : power > 16 * MIB ? SIZE_MAX : power + (size_t)(index % 3) - 1;
}

#define EACH_EDGE_SIZE(size) (size_t size, index_ = 0; (size = edge_size((int)index_)) != SIZE_MAX; index_++)

/* Requests no address space can serve. */
static const size_t hopeless[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 4095, SIZE_MAX - 65535,
                                  SIZE_MAX / 2 + 2, SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 2 - 64 * KIB};
#define EACH_HOPELESS(i) (size_t i = 0; i < sizeof hopeless / sizeof *hopeless; i++)
#define REFUSED(call) (errno = 0, (call) == NULL && errno == ENOMEM)

/* ---- one library ---- */

PROMISE(the_whole_family_comes_from_one_library) {
    static const char *const family[] = {"malloc",        "free",         "calloc", "realloc", "reallocarray",
                                         "aligned_alloc", "memalign",     "valloc", "pvalloc", "posix_memalign",
                                         "malloc_usable_size", "cfree", "free_sized", "free_aligned_sized"};
    enum { EACH = sizeof family / sizeof *family, NOT_EVERYWHERE = EACH - 3 };
    Dl_info malloc_info, info;
    HOLDS(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &malloc_info));
    for (int i = 0; i < EACH; i++) {
        void *symbol = dlsym(RTLD_DEFAULT, family[i]);
        if (symbol == NULL && i >= NOT_EVERYWHERE) continue; /* gone since glibc 2.26, or new in C23 */
        HOLDS(symbol != NULL && dladdr(symbol, &info));
        HOLDS(strcmp(info.dli_fname, malloc_info.dli_fname) == 0);
    }
    /* A preload that the loader could not open is only a warning: make it an error. */
    const char *preload = getenv("LD_PRELOAD");
    HOLDS(preload == NULL || strcmp(preload, malloc_info.dli_fname) == 0);
}

PROMISE(c23_sized_free_works_where_it_exists) {
    void (*free_sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*free_aligned_sized)(void *, size_t, size_t) =
        (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    if (free_sized == NULL || free_aligned_sized == NULL) UNTRIED("free_sized does not exist here");
    free_sized(NULL, 0);
    for EACH_EDGE_SIZE (size) {
        free_sized(malloc(size), size);
        free_aligned_sized(aligned_alloc(64, (size + 63) / 64 * 64), 64, (size + 63) / 64 * 64);
    }
}

/* cfree ignores all that is behind the block. */
PROMISE(every_free_frees) {
    static const char *const names[] = {"free_sized", "free_aligned_sized", "cfree"};
    free(malloc(opaque(1))); /* what an emulator needs for a heap is not ours */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *frees = dlsym(RTLD_DEFAULT, names[i]);
        long before = resident_bytes();
        for (int n = 0; frees && n < 64 * KIB; n++) {
            char *block = memset(aligned_alloc(64, KIB), 1, KIB);
            if (strcmp(names[i], "free_aligned_sized") == 0)
                ((void (*)(void *, size_t, size_t))frees)(block, 64, KIB);
            else ((void (*)(void *, size_t))frees)(block, KIB);
        }
        HOLDS(resident_bytes() - before < 16 * MIB);
    }
}

PROMISE(glibc_extras_are_harmless) {
    void *block = malloc(100);
    fill(block, 100, 1);
    malloc_trim(0);
    mallopt(M_MMAP_THRESHOLD, 1 * MIB);
    mallinfo();
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    HOLDS(malloc_info(0, stream) == 0 && fclose(stream) == 0 && length > 0);
    free(text);
    HOLDS(is_filled(block, 100, 1));
    free(block);
}

/* ---- malloc ---- */

PROMISE(malloc_serves_every_size_aligned_and_usable) {
    for (size_t size = 0; size <= SMALL_MAX; size++) {
        unsigned char *block = malloc(size);
        HOLDS(block != NULL);
        HOLDS(is_aligned(block, natural_alignment(size)));
        HOLDS(malloc_usable_size(block) >= size);
        fill(block, size, 1);
        HOLDS(is_filled(block, size, 1));
        free(block);
    }
    for EACH_EDGE_SIZE (size) {
        unsigned char *block = malloc(size);
        HOLDS(block != NULL);
        HOLDS(is_aligned(block, natural_alignment(size)));
        if (size) block[0] = block[size / 2] = block[size - 1] = 1;
        free(block);
    }
}

PROMISE(malloc_of_zero_bytes_gives_distinct_blocks) {
    void *one = malloc(0), *two = malloc(0);
    HOLDS(one != NULL && two != NULL && one != two);
    free(one);
    free(two);
}

PROMISE(malloc_serves_several_gigabytes) {
    size_t size = opaque((size_t)3 << 30);
    unsigned char *block = malloc(size);
    HOLDS(block != NULL);
    block[0] = block[size - 1] = 1;
    free(block);
}

PROMISE(malloc_refuses_the_impossible_with_enomem) {
    for EACH_HOPELESS (i) HOLDS(REFUSED(malloc(opaque(hopeless[i]))));
    void *block = malloc(opaque((size_t)1 << 46)); /* plausible, yet rarely there: either answer is right */
    HOLDS(block != NULL || errno == ENOMEM);
    free(block);
}

/* A new block holds what the allocator left there, and a program may move that, unread, within it. */
PROMISE(a_block_is_resized_whatever_it_holds) {
    static const size_t sizes[] = {16, 32, 48, 208, 1000, 1500, 8000, 20000};
    enum { COUNT = 4000, SPAN = 24 };
    static void *blocks[COUNT];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t size = sizes[s], words = size / 8 < SPAN ? size / 8 : SPAN;
        for (int i = 0; i < COUNT; i++) blocks[i] = malloc(size);
        for (int i = 0; i < COUNT; i++) free(blocks[i]);
        for (int i = 0; i < COUNT; i++) blocks[i] = malloc(size);
        for (int i = 0; i < COUNT; i++)
            for (size_t word = 0; word < words; word++) {
                memmove(blocks[i], (char *)blocks[i] + 8 * word, 8);
                HOLDS(blocks[i] = realloc(blocks[i], size - 1));
            }
        for (int i = 0; i < COUNT; i++) free(blocks[i]);
    }
}

PROMISE(live_blocks_never_overlap) {
    enum { BLOCKS = 20000 };
    static unsigned char *blocks[BLOCKS];
    static size_t sizes[BLOCKS];
    uint32_t random = 1;
    for (int round = 0; round < 3; round++) {
        for (unsigned i = round; i < BLOCKS; i += round + 1) {
            random = random * 1664525 + 1013904223;
            if (blocks[i]) HOLDS(is_filled(blocks[i], sizes[i], i));
            free(blocks[i]);
            sizes[i] = (random >> 8) % ((size_t)16 << (random >> 29));
            blocks[i] = malloc(sizes[i]);
            fill(blocks[i], sizes[i], i);
        }
    }
    for (unsigned i = 0; i < BLOCKS; i++) HOLDS(is_filled(blocks[i], sizes[i], i));
    for (unsigned i = 0; i < BLOCKS; i++) free(blocks[i]);
}

PROMISE(blocks_from_libc_functions_can_be_freed) {
    char *text = NULL, *line = NULL;
    size_t length = 0, capacity = 0;
    free(strdup("duplicate"));
    HOLDS(asprintf(&text, "%0*d", 70000, 7) == 70000);
    FILE *stream = fmemopen(text, 70000, "r");
    HOLDS(getline(&line, &capacity, stream) == 70000 && capacity > 70000);
    fclose(stream);
    free(text);
    free(line);
    stream = open_memstream(&text, &length);
    for (int i = 0; i < 5000; i++) fprintf(stream, "%d,", i);
    fclose(stream);
    HOLDS(length == strlen(text));
    free(text);
    free(realpath("/", NULL));
}

/* ---- free ---- */

PROMISE(free_of_null_does_nothing) { free(NULL); }

PROMISE(free_keeps_errno) {
    for EACH_EDGE_SIZE (size) {
        unsigned char *block = malloc(size), *aligned = memalign(4096, size);
        if (size) memset(block, 1, size);
        errno = 4711;
        free(block);
        HOLDS(errno == 4711);
        free(aligned);
        HOLDS(errno == 4711);
        free(NULL);
        HOLDS(errno == 4711);
    }
}

/* The kernel takes no locked page back, and says so. */
PROMISE(free_of_locked_memory_keeps_errno) {
    for (size_t size = 1 * MIB; size <= 64 * MIB; size *= 2) {
        char *block = memset(malloc(size), 1, size);
        if (mlock(block + size / 2, 4 * KIB) != 0) UNTRIED("no memory may be locked here");
        errno = 4711;
        free(block);
        HOLDS(errno == 4711);
    }
}

/* ---- calloc ---- */

PROMISE(calloc_memory_is_zero_even_when_reused) {
    for EACH_EDGE_SIZE (size) {
        void *dirty[4];
        for (int i = 0; i < 4; i++) memset(dirty[i] = malloc(size), 0xff, size);
        for (int i = 0; i < 4; i++) free(dirty[i]);
        for (int i = 0; i < 4; i++) {
            dirty[i] = calloc(1, size);
            HOLDS(dirty[i] != NULL && is_zero(dirty[i], size));
            memset(dirty[i], 0xff, size);
        }
        for (int i = 0; i < 4; i++) free(dirty[i]);
    }
}

/* Whatever lay there before: blocks of other lengths, cut, joined, resized, and given back now and then, one or all. */
PROMISE(calloc_memory_is_zero_wherever_it_lies) {
    enum { HELD = 200, TURNS = 3000, EACH = 400, GIANTS = 100, GIANT = 36 * MIB };
    static char *held[HELD];
    for (int turn = 0; turn < TURNS; turn++) {
        char **block = &held[next_random() % HELD];
        size_t size = 32 * KIB << next_random() % 6, how = next_random() % 4;
        size += turn % GIANTS == 0 ? GIANT : next_random() % size;
        if (how == 0) *block = realloc(*block, size);
        else free(*block);
        if (how == 1) HOLDS((*block = calloc(1, size)) != NULL && is_zero(*block, size));
        if (how == 2) *block = malloc(size);
        if (how == 3) *block = memalign(256 * KIB, size);
        memset(*block, 0xff, size);
        if (turn % EACH == 0) malloc_trim(0);
        for (int i = 0; turn % EACH == EACH / 2 && i < HELD; held[i++] = NULL) free(held[i]);
    }
    for (int i = 0; i < HELD; i++) free(held[i]);
}

/* In a thread, for what it kept goes where others can have it when it ends. */
enum { DIRTY_SIZE = 1 * MIB, DIRTY_COUNT = 160, DIRTY_LEAST = 1000 };
static char *dirty[(size_t)DIRTY_COUNT * DIRTY_SIZE / DIRTY_LEAST];

static void *fill_and_free(void *size) {
    size_t count = (size_t)DIRTY_COUNT * DIRTY_SIZE / (size_t)size;
    for (size_t i = 0; i < count; i++) memset(dirty[i] = malloc((size_t)size), 0xff, (size_t)size);
    for (size_t i = 0; i < count; i++) free(dirty[i]);
    return NULL;
}

/* Small blocks in what becomes long ones, and long ones of which a block that grows takes a part and touches less. */
PROMISE(calloc_memory_is_zero_where_others_held_more_than_they_touched) {
    for (size_t size = DIRTY_LEAST; size <= DIRTY_SIZE; size += DIRTY_SIZE - DIRTY_LEAST) {
        pthread_t thread;
        HOLDS(pthread_create(&thread, NULL, fill_and_free, (void *)size) == 0 && pthread_join(thread, NULL) == 0);
        free(realloc(realloc(malloc(40 * KIB), 2 * MIB), 3 * MIB));
        malloc_trim(0);
        for (int i = 0; i < DIRTY_COUNT; i++)
            HOLDS((dirty[i] = calloc(1, DIRTY_SIZE)) != NULL && is_zero(dirty[i], DIRTY_SIZE));
        for (int i = 0; i < DIRTY_COUNT; i++) free(dirty[i]);
    }
}

PROMISE(calloc_counts_members) {
    for (size_t members = 1; members < 2000; members = members * 3 + 1) {
        void *block = calloc(members, 24);
        HOLDS(malloc_usable_size(block) >= members * 24 && is_zero(block, members * 24));
        free(block);
    }
}

PROMISE(calloc_of_nothing_gives_a_block) {
    void *blocks[] = {calloc(0, 0), calloc(0, opaque(SIZE_MAX)), calloc(opaque(SIZE_MAX), 0)};
    for (int i = 0; i < 3; i++) HOLDS(blocks[i] != NULL && blocks[i] != blocks[(i + 1) % 3]);
    for (int i = 0; i < 3; i++) free(blocks[i]);
}

PROMISE(calloc_refuses_an_overflowing_product_with_enomem) {
    HOLDS(REFUSED(calloc(opaque(SIZE_MAX / 2), 3)));
    HOLDS(REFUSED(calloc(3, opaque(SIZE_MAX / 2))));
    HOLDS(REFUSED(calloc(opaque((size_t)1 << 32), (size_t)1 << 32)));
    HOLDS(REFUSED(calloc(opaque(((size_t)1 << 32) + 1), ((size_t)1 << 32) + 1)));
    for EACH_HOPELESS (i) HOLDS(REFUSED(calloc(1, opaque(hopeless[i]))));
}

/* ---- realloc ---- */

PROMISE(realloc_of_null_is_malloc) {
    for EACH_EDGE_SIZE (size) {
        void *block = realloc(NULL, size);
        HOLDS(block != NULL && malloc_usable_size(block) >= size);
        free(block);
    }
}

PROMISE(realloc_keeps_the_content_between_all_sizes) {
    for EACH_EDGE_SIZE (from) {
        for (size_t to = 1; to <= 8 * MIB; to *= 4) {
            if (from > 8 * MIB) continue;
            unsigned char *block = malloc(from);
            fill(block, from, 1);
            block = realloc(block, to);
            HOLDS(block != NULL && malloc_usable_size(block) >= to);
            HOLDS(is_aligned(block, natural_alignment(to)));
            HOLDS(is_filled(block, from < to ? from : to, 1));
            block[to - 1] = 1;
            free(block);
        }
    }
}

PROMISE(realloc_keeps_what_is_usable) {
    for (size_t size = 100; size < 4 * MIB; size = size * 5 / 4) {
        char *block = malloc(size), *beside = malloc(size);
        size_t usable = malloc_usable_size(block);
        fill(block, usable, (unsigned)size); /* what shorter ones left does not pass for it */
        block = realloc(block, 3 * usable);
        HOLDS(is_filled(block, usable, (unsigned)size));
        free(block);
        free(beside);
    }
}

PROMISE(realloc_to_an_impossible_size_is_refused) {
    free(realloc(malloc(1 * MIB), 40 * MIB)); /* leaves room in which blocks grow */
    for (size_t had = 100; had < 4 * MIB; had *= 8) {
        char *block = malloc(had);
        block[had - 1] = 7;
        for (size_t less = 0; less < 200000; less = less * 3 + 1) {
            errno = 0;
            HOLDS(realloc(block, opaque(SIZE_MAX) - less) == NULL && errno == ENOMEM && block[had - 1] == 7);
        }
        free(block);
    }
}

/* A block of just the length that one which grows is given, between others of its kind. */
PROMISE(a_block_of_64_mib_is_like_any_other) {
    enum { LARGE = 100 * MIB };
    for (size_t size = 62 * (size_t)MIB; size <= 66 * (size_t)MIB; size += MIB / 2) {
        char *first = malloc(LARGE), *between = malloc(200000), *second = malloc(LARGE), *end = malloc(200000);
        free(first);
        free(second);
        char *middle = malloc(size), *beside = malloc(LARGE);
        for (size_t at = 0; at < LARGE; at += 4096) beside[at] = 0x5a;
        free(middle);
        char *grown = realloc(malloc(1 * MIB), 40 * MIB);
        malloc_trim(0);
        free(grown);
        for (size_t at = 0; at < LARGE; at += 4096) HOLDS(beside[at] == 0x5a);
        free(beside);
        free(between);
        free(end);
    }
}

PROMISE(realloc_grows_step_by_step) {
    unsigned char *block = NULL, *wedge = NULL;
    size_t filled = 0;
    for (size_t size = 1; size < 8 * MIB; size += size / 5 + 13) {
        block = realloc(block, size);
        HOLDS(block != NULL && (filled == 0 || is_filled(block, filled, 9)));
        fill(block, filled = size, 9);
        if (size % 3 == 0) { /* now and then something stands behind the block */
            free(wedge);
            wedge = malloc(size);
        }
    }
    free(wedge);
    free(block);
}

PROMISE(what_grew_where_it_lies_serves_others_in_full) {
    enum { BLOCKS = 8, BESIDE = 100 };
    unsigned char *blocks[BLOCKS];
    void *behind[BLOCKS], *beside[BESIDE];
    for (size_t size = 128 * KIB; size <= 1 * MIB; size += 64 * KIB) {
        for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(size / 2 + 10 * KIB), behind[i] = malloc(size);
        for (int i = 0; i < BLOCKS; i++) free(behind[i]);
        malloc_trim(0);
        for (int i = 0; i < BLOCKS; i++) blocks[i] = realloc(blocks[i], size - 5 * KIB);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
        for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(size);
        for (int i = 0; i < BESIDE; i++) fill(beside[i] = malloc(40 * KIB), 40 * KIB, i);
        for (int i = 0; i < BLOCKS; i++) memset(blocks[i], 0x5a, size);
        for (int i = 0; i < BESIDE; i++) HOLDS(is_filled(beside[i], 40 * KIB, i));
        for (int i = 0; i < BESIDE; i++) free(beside[i]);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
}

PROMISE(realloc_shrinks_and_keeps_the_rest) {
    size_t size = 16 * MIB;
    unsigned char *block = malloc(size);
    fill(block, size, 5);
    while (size > 1) {
        block = realloc(block, size = size * 2 / 3);
        HOLDS(block != NULL && is_filled(block, size, 5));
    }
    free(block);
}

PROMISE(realloc_to_the_same_or_the_usable_size_keeps_every_byte) {
    for EACH_EDGE_SIZE (size) {
        void *block = malloc(size);
        size_t usable = malloc_usable_size(block);
        fill(block, usable, 3);
        block = realloc(block, usable);
        HOLDS(is_filled(block, usable, 3));
        block = realloc(block, size ? size : 1);
        HOLDS(is_filled(block, size, 3));
        free(block);
    }
}

PROMISE(realloc_to_zero_frees_or_gives_a_block) {
    for EACH_EDGE_SIZE (size) free(realloc(malloc(size), opaque(0))); /* either is allowed; leaks are not */
    for (size_t size = 1 * KIB; size <= 1 * MIB; size *= 32) {
        long before = resident_bytes();
        for (size_t i = 0; i < 512 * MIB / size; i++) free(realloc(memset(malloc(size), 1, size), opaque(0)));
        HOLDS(resident_bytes() - before < 128 * MIB);
    }
}

PROMISE(realloc_refused_leaves_the_block_alone) {
    for EACH_EDGE_SIZE (size) {
        if (size > MIB) break;
        void *block = malloc(size);
        fill(block, size, 8);
        for EACH_HOPELESS (i) HOLDS(REFUSED(realloc(block, opaque(hopeless[i]))));
        HOLDS(is_filled(block, size, 8));
        free(block);
    }
    for EACH_HOPELESS (i) HOLDS(REFUSED(realloc(NULL, opaque(hopeless[i]))));
}

PROMISE(realloc_of_an_aligned_block_keeps_the_content) {
    for (size_t alignment = 16; alignment <= 1 * MIB; alignment *= 4) {
        unsigned char *block = memalign(alignment, 1000);
        fill(block, 1000, 6);
        block = realloc(block, 100000);
        HOLDS(block != NULL && is_filled(block, 1000, 6));
        block = realloc(block, 10);
        HOLDS(block != NULL && is_filled(block, 10, 6));
        free(block);
    }
}

PROMISE(reallocarray_multiplies_and_refuses_overflow) {
    unsigned char *block = reallocarray(NULL, 10, 10);
    fill(block, 100, 2);
    HOLDS(REFUSED(reallocarray(block, opaque(SIZE_MAX / 2), 3)));
    HOLDS(REFUSED(reallocarray(block, opaque((size_t)1 << 32), (size_t)1 << 32)));
    block = reallocarray(block, 1000, 10);
    HOLDS(block != NULL && malloc_usable_size(block) >= 10000 && is_filled(block, 100, 2));
    free(block);
}

/* ---- usable size ---- */

PROMISE(usable_size_of_null_is_zero) { HOLDS(malloc_usable_size(NULL) == 0); }

PROMISE(usable_size_is_stable_and_every_byte_is_the_callers) {
    enum { BLOCKS = 64 };
    unsigned char *blocks[BLOCKS];
    size_t usable[BLOCKS];
    for EACH_EDGE_SIZE (size) {
        unsigned count = size > 1 * MIB ? 2 : BLOCKS;
        for (unsigned i = 0; i < count; i++) {
            blocks[i] = i % 3 == 1 ? calloc(1, size) : i % 3 == 2 ? memalign(64, size) : malloc(size);
            usable[i] = malloc_usable_size(blocks[i]);
            HOLDS(usable[i] >= size);
            fill(blocks[i], usable[i], i);
        }
        for (unsigned i = 0; i < count; i++) {
            HOLDS(malloc_usable_size(blocks[i]) == usable[i]);
            HOLDS(is_filled(blocks[i], usable[i], i));
        }
        for (unsigned i = 0; i < count; i++) free(blocks[i]);
    }
}

/* Of lengths that leave less than a page between one block and the next, too. */
PROMISE(usable_bytes_are_of_one_block_only) {
    enum { BLOCKS = 8 };
    char *blocks[BLOCKS];
    for (size_t size = 33 * KIB; size < 500 * KIB; size += 500) {
        for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(size);
        for (int i = 0; i < BLOCKS; i++)
            for (int j = 0; j < BLOCKS; j++)
                HOLDS(blocks[i] >= blocks[j] || blocks[i] + malloc_usable_size(blocks[i]) <= blocks[j]);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
}

/* ---- aligned blocks ---- */

enum { PAIRS = 2000 };

PROMISE(a_block_comes_again) {
    for (int i = 0; i < PAIRS; i++) {
        void *block = malloc(opaque(100));
        HOLDS(block != NULL);
        free(block);
    }
}

PROMISE(an_aligned_block_comes_again) {
    for (int i = 0; i < PAIRS; i++) {
        void *block;
        HOLDS(posix_memalign(&block, 64, opaque(100)) == 0 && is_aligned(block, 64));
        free(block);
    }
}

static void *by_posix_memalign(size_t alignment, size_t size) {
    void *block = NULL;
    HOLDS(posix_memalign(&block, alignment, size) == 0);
    return block;
}

static void *by_aligned_alloc(size_t alignment, size_t size) {
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

PROMISE(every_alignment_is_honoured) {
    static void *(*const make[])(size_t, size_t) = {by_posix_memalign, by_aligned_alloc, memalign};
    enum { HELD = 6 };
    for (size_t alignment = sizeof(void *); alignment <= 4 * MIB; alignment *= 2) {
        for (size_t size = 1; size <= 2 * MIB; size = size * 3 + 5) {
            void *held[HELD]; /* several at a time: the first block of a slab is aligned by luck */
            for (unsigned i = 0; i < HELD; i++) {
                held[i] = make[i % 3](alignment, size);
                HOLDS(held[i] != NULL && is_aligned(held[i], alignment));
                HOLDS(malloc_usable_size(held[i]) >= size);
                fill(held[i], size < 4096 ? size : 4096, i);
            }
            for (unsigned i = 0; i < HELD; i++) {
                HOLDS(is_filled(held[i], size < 4096 ? size : 4096, i));
                free(held[i]);
            }
        }
    }
}

PROMISE(size_equal_to_alignment_is_aligned_too) {
    enum { HELD = 200 };
    static void *held[HELD];
    for (size_t alignment = 16; alignment <= 64 * KIB; alignment *= 2) {
        for (int i = 0; i < HELD; i++) {
            held[i] = aligned_alloc(alignment, alignment);
            HOLDS(held[i] != NULL && is_aligned(held[i], alignment));
        }
        for (int i = 0; i < HELD; i++) free(held[i]);
    }
}

/* Longer blocks that lie idle, each aligned as its own size has it, are no answer. */
PROMISE(alignment_is_honoured_where_longer_blocks_lie_idle) {
    enum { HELD = 16 };
    void *held[HELD];
    for (size_t alignment = 16 * KIB; alignment >= 512; alignment /= 2) {
        for (size_t size = alignment; size <= 32 * KIB; size += alignment) {
            for (size_t i = 0; i < HELD; i++) held[i] = malloc(size + size * (i + 1) / 32);
            for (int i = 0; i < HELD; i++) free(held[i]);
            for (int i = 0; i < HELD; i++) {
                held[i] = aligned_alloc(alignment, size);
                HOLDS(is_aligned(held[i], alignment) && malloc_usable_size(held[i]) >= size);
            }
            for (int i = 0; i < HELD; i++) free(held[i]);
        }
    }
}

PROMISE(posix_memalign_says_einval_and_leaves_the_pointer) {
    static const size_t bad[] = {0, 1, 2, 3, 4, 7, 12, 24, 100, 4097, SIZE_MAX};
    void *block = &block;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        HOLDS(posix_memalign(&block, opaque(bad[i]), 100) == EINVAL);
        HOLDS(block == &block);
    }
}

PROMISE(memalign_takes_the_next_power_of_two) {
    static const size_t odd[] = {0, 3, 12, 24, 100, 4097, 3 * MIB};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        void *block = memalign(opaque(odd[i]), 100);
        size_t alignment = 1;
        while (alignment < odd[i]) alignment *= 2;
        HOLDS(block != NULL && is_aligned(block, alignment));
        free(block);
    }
    errno = 0;
    HOLDS(memalign(opaque(SIZE_MAX), 100) == NULL && errno == EINVAL);
}

PROMISE(posix_memalign_keeps_errno) {
    void *block = &block;
    errno = 4711;
    HOLDS(posix_memalign(&block, 3, 100) == EINVAL && errno == 4711);
    for EACH_HOPELESS (i) HOLDS(posix_memalign(&block, 64, opaque(hopeless[i])) == ENOMEM && errno == 4711);
}

PROMISE(aligned_blocks_refuse_the_impossible) {
    void *block = &block;
    for (size_t alignment = 8; alignment <= 1 * MIB; alignment *= 8) {
        for EACH_HOPELESS (i) {
            HOLDS(posix_memalign(&block, alignment, opaque(hopeless[i])) == ENOMEM && block == &block);
            HOLDS(REFUSED(memalign(alignment, opaque(hopeless[i]))));
            HOLDS(REFUSED(aligned_alloc(alignment, opaque(hopeless[i] / alignment * alignment))));
        }
    }
    HOLDS(posix_memalign(&block, opaque(SIZE_MAX / 2 + 1), 100) == ENOMEM && block == &block);
    HOLDS(REFUSED(aligned_alloc(opaque(SIZE_MAX / 2 + 1), 100)));
}

PROMISE(a_bad_alignment_is_einval_or_aligned_more) {
    static void *(*const make[])(size_t, size_t) = {aligned_alloc, memalign};
    static const size_t bad[] = {0, 3, 24, 100};
    for (size_t i = 0; i < 2 * sizeof bad / sizeof *bad; i++) { /* C17 allows failure, glibc's memalign rounds up */
        size_t more = 16; /* as every block of 80 bytes */
        while (more < bad[i / 2]) more *= 2;
        void *first = malloc(80); /* it is aligned by luck */
        errno = 0;
        void *block = make[i % 2](bad[i / 2], 80);
        HOLDS(block ? is_aligned(block, more) : errno == EINVAL);
        free(block);
        free(first);
    }
}

PROMISE(zero_sized_aligned_blocks_can_be_freed) {
    for (size_t alignment = 8; alignment <= 1 * MIB; alignment *= 2) {
        void *block = NULL;
        HOLDS(posix_memalign(&block, alignment, opaque(0)) == 0 && is_aligned(block, alignment));
        free(block);
        free(aligned_alloc(alignment, opaque(0)));
    }
}

PROMISE(valloc_and_pvalloc_work_in_pages) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t size = 0; size < 1 * MIB; size = size * 5 + 3) {
        void *one = valloc(size), *two = pvalloc(size);
        HOLDS(one && is_aligned(one, page) && malloc_usable_size(one) >= size);
        HOLDS(two && is_aligned(two, page) && malloc_usable_size(two) >= (size + page - 1) / page * page);
        memset(two, 1, (size + page - 1) / page * page);
        free(one);
        free(two);
    }
    for EACH_HOPELESS (i) {
        HOLDS(REFUSED(valloc(opaque(hopeless[i]))));
        HOLDS(REFUSED(pvalloc(opaque(hopeless[i]))));
    }
}
