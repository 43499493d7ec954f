/* Promise 10 for blocks that grow and shrink: pages go back, and to the next one that grows. */
#include "../library.h"
#include "../peak.h"
#include <malloc.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>

static size_t grow_by_half(size_t at, size_t size, size_t most) {
    size_t more = size + size / 2 < most ? size + size / 2 : most;
    blocks[at] = realloc(blocks[at], more);
    memset(blocks[at] + size, 1, more - size);
    return more;
}

/* Vectors grow in address space of their own. */
PROMISE(a_peak_of_vectors_that_grew_side_by_side_goes_back) {
    enum { SIZE = 2200 * 1000, COUNT = PEAK / SIZE };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t had = 1000, size = had; had < SIZE; had = size)
        for (size_t i = 0; i < COUNT; i++) size = grow_by_half(i, had, SIZE);
    expect_at_most(before + PEAK / 4 * 5);
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
    expect_given_back(before);
}

PROMISE(a_peak_of_vectors_that_grew_one_after_the_other_goes_back) {
    enum { SIZE = 2200 * 1000, COUNT = PEAK / SIZE };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t i = 0; i < COUNT; i++)
        for (size_t size = 1000; size < SIZE;) size = grow_by_half(i, size, SIZE);
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
    expect_given_back(before);
}

enum { VECTOR = 48 * MIB, EMPTIED = 100 * KIB };

static char *vector_refilled(char *vector) {
    for (size_t size = EMPTIED; size <= VECTOR; size *= 2) memset(vector = realloc(vector, size), 1, size);
    return realloc(vector, EMPTIED);
}

PROMISE(an_emptied_vector_gives_its_pages_back) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    char *vector = vector_refilled(NULL);
    peak_of(12 * KIB);
    expect_given_back(before);
    free(vector);
}

static void *grow_and_shrink(void *vector) {
    for (;;) vector = realloc(realloc(vector, 24 * MIB), 2 * MIB);
    return NULL;
}

/* Else its helper would come back for ever. Whatever a thread that stayed behind was doing to its vector. */
PROMISE(a_child_has_no_more_to_give_back_than_it_gives) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) HOLDS(pthread_create(&thread, NULL, grow_and_shrink, NULL) == 0);
    usleep(50000);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            malloc_trim(0);
            HOLDS(counter("dirty_bytes") < 4 * MIB);
            _exit(0);
        }
        wait_for(child);
    }
    _exit(0);
}

/* It grows where it lies, as it was there before. */
static char *resized;

static void *resize_in_place(void *unused) {
    (void)unused;
    size_t size = 400 * KIB;
    while (realloc(resized, size) == resized) size = size < 40 * MIB ? size + 70 * KIB : 400 * KIB;
    _exit(EXIT_UNTRIED);
}

PROMISE(a_child_may_free_a_block_that_another_thread_was_resizing) {
    pthread_t thread;
    for (size_t size = 50 * KIB; size <= 44 * MIB; size += 500 * KIB) HOLDS((resized = realloc(resized, size)) != NULL);
    HOLDS(pthread_create(&thread, NULL, resize_in_place, NULL) == 0);
    usleep(50000);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            if (i % 2) free(resized);
            else HOLDS(realloc(resized, 45 * MIB) != NULL);
            _exit(0);
        }
        wait_for(child);
    }
    _exit(0);
}

/* It would leave its pages behind. */
PROMISE(a_block_that_has_room_does_not_move) {
    for (size_t size = 40 * KIB; size <= 16 * MIB; size = size / 2 * 3) {
        void *block = malloc(size);
        HOLDS(realloc(block, malloc_usable_size(block)) == block);
        free(block);
    }
}

PROMISE(a_large_block_that_shrinks_gives_its_pages_back) {
    char *block = memset(malloc(200 * MIB), 1, 200 * MIB);
    block = realloc(block, 110 * MIB);
    HOLDS(resident_bytes() < 130 * MIB);
    free(block);
}

PROMISE(vectors_that_shrank_give_their_pages_back) {
    enum { SIZE = 8 * MIB, COUNT = PEAK / SIZE };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t size = 64 * KIB; size <= SIZE; size *= 2)
        for (size_t i = 0; i < COUNT; i++) memset(blocks[i] = realloc(blocks[i], size), 1, size);
    for (size_t i = 0; i < COUNT; i++) blocks[i] = realloc(blocks[i], EMPTIED);
    expect_given_back(before);
}

/* A vector grows to `most` bytes and is freed, so many times. Result: pages touched anew from the second time on. */
static long faults_of_lives(int lives, size_t most) {
    struct rusage first, last;
    for (int life = 0; life < lives; life++) {
        blocks[0] = NULL;
        for (size_t size = 0; size < most;) size = size ? grow_by_half(0, size, most) : (blocks[0] = malloc(1000), 1000);
        free(blocks[0]);
        getrusage(RUSAGE_SELF, life == 0 ? &first : &last);
    }
    return last.ru_minflt - first.ru_minflt;
}

/* Also one that nothing stands in the way of where it lies. */
PROMISE(a_vector_leaves_its_pages_to_the_next_one) { HOLDS(faults_of_lives(6, 40 * MIB) < 40 * MIB / 4096); }

/* Two vectors grow in turns to `most` bytes and are freed. Result: how often one moved that had 16 MiB or more. */
static int moves_of_two(size_t most) {
    int moves = 0;
    blocks[0] = blocks[1] = NULL;
    for (size_t size = 1 * MIB; size <= most; size *= 2)
        for (int i = 0; i < 2; i++) {
            char *grown = realloc(blocks[i], size);
            HOLDS(grown != NULL);
            moves += size > 16 * MIB && grown != blocks[i];
            blocks[i] = grown;
            memset(grown + size / 2, 1, size - size / 2);
        }
    HOLDS(resident_bytes() < (long)(2 * most + 32 * MIB));
    for (int i = 0; i < 2; i++) {
        for (size_t at = 1 * MIB; at < most; at += 1 * MIB) HOLDS(((char *)blocks[i])[at] == 1);
        free(blocks[i]);
    }
    return moves;
}

PROMISE(a_vector_that_outgrows_its_window_moves_once_and_the_next_one_not_at_all) {
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    HOLDS(moves_of_two(128 * MIB) <= 2);
    for (int life = 0; life < 3; life++) HOLDS(moves_of_two(128 * MIB) == 0);
    peak_of(12 * KIB);
    expect_given_back(before);
}

/* Else its window would hold them for as long as the block in it lives. */
PROMISE(a_vector_that_outgrew_its_window_and_shrinks_gives_its_pages_back) {
    blocks[0] = NULL;
    for (size_t size = 25 * MIB; size <= 200 * MIB; size *= 2) HOLDS((blocks[0] = realloc(blocks[0], size)) != NULL);
    memset(blocks[0], 1, 200 * MIB);
    blocks[0] = realloc(blocks[0], 110 * MIB);
    HOLDS(resident_bytes() < 130 * MIB);
    free(blocks[0]);
}

/* A kernel may call every page resident, as some sandboxes do: nothing is decided by that alone. From here on this
 * program stands before libc's function. */
static bool all_is_resident;

int mincore(void *address, size_t bytes, unsigned char *resident) {
    if (!all_is_resident) return (int)syscall(SYS_mincore, address, bytes, resident);
    memset(resident, 1, (bytes + 4095) / 4096);
    return 0;
}

PROMISE(it_does_so_where_all_is_called_resident) {
    all_is_resident = true;
    HOLDS(faults_of_lives(5, 60 * MIB) < 60 * MIB / 4096);
}

/* What a program has in a block looks at times like what a free one holds: to resize it takes no search, however many
 * are free. Compared by the instructions they take (test_gates.py). */
static void resize_a_block_that_begins_with(const char *word) {
    enum { FREED = 3000, TIMES = 2000, SIZE = 64 };
    static char *freed[FREED];
    for (int i = 0; i < FREED; i++) freed[i] = memset(malloc(SIZE), 1, SIZE);
    for (int i = 0; i < FREED; i++) free(freed[i]);
    char *block = malloc(SIZE);
    for (int i = 0; i < TIMES; i++) {
        memcpy(block, word, 8);
        HOLDS((block = realloc(block, SIZE - (size_t)i % 2)) != NULL);
    }
    free(block);
}

PROMISE(a_block_of_numbers_is_resized) { resize_a_block_that_begins_with("\0\0\0\0\0\0\xf8\x3f"); }
PROMISE(a_block_of_zeros_is_resized) { resize_a_block_that_begins_with("\0\0\0\0\0\0\0\0"); }
PROMISE(a_block_of_text_is_resized) { resize_a_block_that_begins_with("{\"a\": 1}"); }
PROMISE(a_block_of_no_numbers_is_resized) { resize_a_block_that_begins_with("\0\0\0\0\0\0\xf8\x7f"); }

/* A buffer whose length varies a little is not copied to and fro; one that keeps little of its block leaves the rest. */
PROMISE(a_block_of_which_half_is_needed_stays_where_it_is) {
    for (size_t size = 48; size <= 1 * MIB; size += size / 3) {
        char *block = malloc(size);
        size_t usable = malloc_usable_size(block);
        memset(block, 1, usable);
        for (size_t less = usable; less >= usable / 2; less -= usable / 32 + 1)
            HOLDS(realloc(block, less) == block && realloc(block, usable) == block);
        HOLDS(block[usable - 1] == 1);
        free(block);
    }
}

PROMISE(blocks_that_shrink_to_a_fifth_make_room_for_others) {
    enum { BLOCKS = 32 * 1024, SIZE = 1000 };
    static char *shrunk[BLOCKS], *others[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) shrunk[i] = memset(malloc(SIZE), 1, SIZE);
    long before = resident_bytes();
    for (int i = 0; i < BLOCKS; i++) shrunk[i] = realloc(shrunk[i], SIZE / 5);
    for (int i = 0; i < BLOCKS / 4 * 3; i++) others[i] = memset(malloc(SIZE), 2, SIZE);
    HOLDS(resident_bytes() - before < 8 * MIB);
    for (int i = 0; i < BLOCKS; i++) HOLDS(shrunk[i][SIZE / 5 - 1] == 1);
    for (int i = 0; i < BLOCKS; i++) free(shrunk[i]);
    for (int i = 0; i < BLOCKS; i++) free(others[i]);
}

PROMISE(a_vector_that_is_refilled_keeps_its_pages) {
    enum { SECONDS = 6 };
    struct rusage warm, after;
    char *vector = vector_refilled(NULL);
    for (time_t end = time(NULL) + SECONDS; time(NULL) < end;) {
        vector = vector_refilled(vector);
        free(vector_refilled(NULL)); /* there is something to give back meanwhile */
        getrusage(RUSAGE_SELF, time(NULL) < end - SECONDS / 2 ? &warm : &after);
    }
    HOLDS(after.ru_minflt - warm.ru_minflt < 20);
    free(vector);
}

/* What one had of the address space goes back with its pages, so there is always some for the next one. */
PROMISE(there_is_room_to_grow_however_often_it_was_given_back) {
    for (int i = 0; i < 1200; i++) {
        char *block = realloc(realloc(malloc(40 * KIB), 1 * MIB), 2 * MIB);
        HOLDS(span_of(block).kind == HAK_SPAN_WINDOW);
        free(block);
        malloc_trim(0);
    }
}

/* Blocks that grew a little take no windows of far longer ones, pages and all. */
PROMISE(small_buffers_hold_no_pages_of_large_ones) {
    enum { BUFFERS = 900 };
    memset(blocks, 0, sizeof blocks);
    long before = resident_bytes();
    for (size_t i = 0; i < BUFFERS; i++) blocks[i] = malloc(50 * KIB);
    for (size_t i = 0; i < BUFFERS; i++) memset(blocks[i] = realloc(blocks[i], 110 * KIB), 1, 110 * KIB);
    for (size_t i = 0; i < BUFFERS; i++) free(blocks[i]);
    for (size_t i = 0; i < BUFFERS; i++) blocks[i] = realloc(malloc(1500), 3000);
    expect_at_most(before + 24 * MIB);
    for (size_t i = 0; i < BUFFERS; i++) free(blocks[i]);
}

/* Nor are shorter ones copied at each step for ever, if they come again and again. */
PROMISE(a_vector_that_grows_to_64_kib_is_copied_no_more_once_many_were) {
    enum { ROUNDS = 200 };
    int moves = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char *vector = malloc(16);
        for (size_t size = 32; size <= 64 * KIB; size *= 2) {
            uintptr_t before = opaque((uintptr_t)vector);
            vector = realloc(vector, size);
            vector[size - 1] = 1;
            moves += round >= ROUNDS / 2 && size > 4 * KIB && (uintptr_t)vector != before;
        }
        free(vector);
    }
    HOLDS(moves < ROUNDS / 20);
}

/* What grows in small steps is copied each time that it has grown by a quarter, not at each step. */
PROMISE(a_string_that_grows_by_a_few_bytes_moves_seldom) {
    enum { STEP = 8, LONG = 1 * MIB };
    int moves = 0;
    char *string = NULL;
    for (size_t size = STEP; size <= LONG; size += STEP) {
        uintptr_t before = opaque((uintptr_t)string);
        string = realloc(string, size);
        moves += (uintptr_t)string != before;
        HOLDS(malloc_usable_size(string) >= size);
        memset(string + size - STEP, (int)(size / STEP), STEP);
    }
    for (size_t at = 0; at < LONG; at++) HOLDS(string[at] == (char)(at / STEP + 1));
    HOLDS(moves < 50);
    free(string);
}

/* Whatever sizes it had while pages behind it went back. */
PROMISE(a_vector_that_shrank_and_grew_again_keeps_what_it_holds) {
    enum { COUNT = 16, LONG = 100 * KIB };
    char *vectors[COUNT] = {NULL};
    for (int i = 0; i < COUNT; i++)
        for (size_t size = LONG; size < 8 * MIB; size *= 2) memset(vectors[i] = realloc(vectors[i], size), 1, size);
    for (int i = 0; i < COUNT; i++) vectors[i] = realloc(vectors[i], LONG / 2);
    for (int i = 0; i < COUNT; i++) {
        usleep(30000);
        vectors[i] = realloc(vectors[i], 62 * KIB);
        memset(vectors[i] = realloc(vectors[i], LONG), 2, LONG);
    }
    usleep(1500000);
    for (int i = 0; i < COUNT; i++)
        for (size_t at = 0; at < LONG; at++) HOLDS(vectors[i][at] == 2);
    for (int i = 0; i < COUNT; i++) free(vectors[i]);
}

/* Hardened, one that grew by a byte has no more than that, so a write behind it is noticed. */
PROMISE(what_grew_by_a_byte_has_a_quarter_more_at_most) {
    const char *(*profile)(void) = (const char *(*)(void))library("hak_profile");
    bool hardened = strcmp(profile(), "hardened") == 0;
    char *block = realloc(malloc(112), 113);
    HOLDS(malloc_usable_size(block) <= (hardened ? 113 : 144));
    free(block);
}
