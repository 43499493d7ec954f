/* Promise 12: a block that is freed twice, or resized when it is free, is not handed out twice, wherever it lies by then,
 * and though nobody has written to it: that a program writes is no help to the allocator here. */
#include "../serve.h"
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

enum { TAKEN = 12000 };

/* 0 in a silent child, that tries; there every block has one owner, or the program is ended. */
static pid_t child_begins(void) {
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) dup2(open("/dev/null", O_WRONLY), 2);
    return child;
}

static void expect_one_owner(pid_t child) {
    int status;
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : WEXITSTATUS(status) == 0);
}

/* Is one of these handed out twice? They are sorted. */
static int two_are_one(char **taken, size_t count) {
    qsort(taken, count, sizeof *taken, by_address);
    for (size_t i = 1; i < count; i++)
        if (taken[i - 1] == taken[i]) return 1;
    return 0;
}

enum crime { FREE_AGAIN, RESIZE };

/* 0: every block has one owner. `apart` other blocks are freed between the free and the crime. */
static int commit(enum crime crime, size_t size, int apart) {
    static char *others[TAKEN], *taken[TAKEN];
    char *block = malloc(size);
    for (int i = 0; i < apart; i++) others[i] = malloc(size);
    free(block);
    for (int i = 0; i < apart; i++) free(others[i]);
    if (crime == FREE_AGAIN) free(block);
    else taken[0] = realloc(block, size - 1); /* its length serves */
    for (int i = crime; i < TAKEN; i++) taken[i] = malloc(size);
    return two_are_one(taken, TAKEN);
}

/* The first copy in a slot below, in the spare magazine, and at every depth of one in the depot. */
static void has_one_owner_after(enum crime crime) {
    static const size_t sizes[] = {16, 48, 200, 1000, 3000, 12 * KIB};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int apart = 0; apart < 3000; apart += apart < 40 ? 1 : 97) {
            pid_t child = child_begins();
            if (child == 0) _exit(commit(crime, sizes[s], apart));
            expect_one_owner(child);
        }
}

PROMISE(is_not_handed_out_twice) { has_one_owner_after(FREE_AGAIN); }
PROMISE(is_not_resized_where_it_lies) { has_one_owner_after(RESIZE); }

/* A free of a block that nobody has: of one whose slab went back and serves anew, or, `fresh`, of one behind all that
 * were handed out, which is told at once. 0: every block has one owner, whose block begins with zeros. */
static int free_nobodys(size_t size, int fresh) {
    static char *taken[TAKEN];
    char *block = NULL;
    for (int i = 0; i < TAKEN; i++) taken[i] = malloc(size);
    char *victim = taken[TAKEN / 40];
    for (int i = 0; i < TAKEN; i++) free(taken[i]);
    malloc_trim(0);
    for (int i = 0; i < 10; i++) {
        taken[i] = malloc(size);
        if (block == NULL || taken[i] > block) block = taken[i];
    }
    size_t step = malloc_usable_size(block);
    free(fresh ? block + step * (4 * KIB / step + 1) : victim);
    if (fresh) return 1;
    for (int i = 10; i < TAKEN; i++) memset(taken[i] = malloc(size), 0, size);
    return two_are_one(taken, TAKEN);
}

PROMISE(a_free_of_nobodys_block_makes_no_two_owners) {
    for (size_t size = 100; size <= 20000; size *= 5)
        for (int fresh = 0; fresh < 2; fresh++) {
            pid_t child = child_begins();
            if (child == 0) _exit(free_nobodys(size, fresh));
            expect_one_owner(child);
        }
}

/* Freed again when its pages are gone, in a slab of which other blocks stay. 0: every block has one owner. */
static int free_without_pages(size_t size) {
    enum { COUNT = 20000, STAYS = 60 };
    static char *taken[COUNT];
    for (int i = 0; i < COUNT; i++) memset(taken[i] = malloc(size), 1, size);
    for (int i = 0; i < COUNT; i++)
        if (i % STAYS != 0) free(taken[i]);
    malloc_trim(0);
    free(taken[COUNT / 2 + STAYS / 2]);
    for (int i = 0; i < COUNT; i++)
        if (i % STAYS != 0) memset(taken[i] = malloc(size), i % 2, size);
    return two_are_one(taken, COUNT);
}

PROMISE(a_block_freed_when_its_pages_are_gone_has_one_owner) {
    static const size_t sizes[] = {1000, 5 * KIB, 12 * KIB};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        pid_t child = child_begins();
        if (child == 0) _exit(free_without_pages(sizes[s]));
        expect_one_owner(child);
    }
}

/* Two threads free one block, once each, at the same time; both have done so before either allocates. */
static _Atomic int racing, there, freed;
static char *raced, *taken_there;
static size_t raced_size;

#define PLAIN __attribute__((optimize("O0"))) /* so the two meet more often */

PLAIN static void free_and_take(int delay, char **taken) {
    for (there++; there < 2;) {}
    for (volatile int spin = 0; spin < delay; spin++) {}
    free(raced);
    for (freed++; freed < 2;) {}
    *taken = malloc(raced_size);
}

PLAIN static void *free_there(void *delay) {
    free(malloc(raced_size)); /* the thread has a cache by then */
    for (racing = 1; racing != 2;) {}
    free_and_take((int)(intptr_t)delay, &taken_there);
    return NULL;
}

PLAIN static int race(size_t size, int delay_here, int delay_there) {
    char *taken_here;
    pthread_t there;
    raced = malloc(raced_size = size);
    alarm(20);
    if (pthread_create(&there, NULL, free_there, (void *)(intptr_t)delay_there) != 0) return EXIT_UNTRIED;
    while (racing != 1) {}
    racing = 2;
    free_and_take(delay_here, &taken_here);
    pthread_join(there, NULL);
    return taken_here == taken_there;
}

PROMISE(a_block_that_two_threads_free_at_a_time_has_one_owner) {
    enum { ROUNDS = 1000 };
    static const size_t sizes[] = {100, 50 * KIB, 100 * KIB, 300 * KIB};
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = child_begins();
        if (child == 0) _exit(race(sizes[round % 4], round / 4 % 60, round / 240 % 10));
        expect_one_owner(child);
    }
}

/* The same where one of them keeps all that it may, so that its run goes to the arena, while the other's word that it
 * keeps the run waits behind stores to memory that is in no cache. 0: no block lies in another's. */
enum { MANY = 200, COLD = 40, APART = 12 * KIB };
static char cold[COLD * APART];

PLAIN static void *free_behind_stores(void *unused) {
    (void)unused;
    free(malloc(raced_size));
    taken_there = malloc(raced_size); /* it keeps none */
#ifdef __x86_64__
    for (size_t i = 0; i < COLD; i++) __builtin_ia32_clflush(cold + i * APART);
    __builtin_ia32_mfence();
#endif
    for (there++; there < 2;) {}
    for (size_t i = 0; i < COLD; i++) cold[i * 37 % COLD * APART] = 1;
    free(raced);
    for (freed++; freed < 2;) {}
    taken_there = malloc(raced_size);
    freed++;
    return NULL;
}

PLAIN static int race_when_full(size_t size, int delay) {
    static char *taken[2 * MANY];
    pthread_t other;
    memset(cold, 1, sizeof cold);
    raced_size = size;
    for (int i = 0; i < MANY; i++) taken[i] = malloc(size);
    raced = taken[MANY * 8 / 10];
    for (int i = 0; i < MANY * 9 / 10; i++)
        if (taken[i] != raced) free(taken[i]);
    alarm(20);
    if (pthread_create(&other, NULL, free_behind_stores, NULL) != 0) return EXIT_UNTRIED;
    for (there++; there < 2;) {}
    for (volatile int spin = 0; spin < delay; spin++) {}
    free(raced);
    for (freed++; freed < 3;) {}
    for (int i = 0; i < 2 * MANY; i++) {
        char *block = malloc(size);
        if (block < taken_there + size && taken_there < block + size) return 1;
    }
    return 0;
}

PROMISE(a_run_that_two_threads_free_at_a_time_has_one_owner_though_one_keeps_no_more) {
    enum { ROUNDS = 1000 };
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = child_begins();
        if (child == 0) _exit(race_when_full(round % 2 ? 50 * KIB : 300 * KIB, round / 2 % 100 * 4));
        expect_one_owner(child);
    }
}

/* What is done there ends the child. */
#define ENDS(crime)                                                \
    do {                                                           \
        int status;                                                \
        pid_t child = child_begins();                              \
        if (child == 0) {                                          \
            crime;                                                 \
            _exit(0);                                              \
        }                                                          \
        HOLDS(waitpid(child, &status, 0) == child);                \
        HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT); \
    } while (0)

/* Nor is one in a magazine that went to the depot slots and all, as those do of which some came back from there; nor
 * one in a slab, between blocks that stay. */
static void resize_freed(size_t size, int apart, int home) {
    static char *blocks[TAKEN];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < TAKEN; i++) memset(blocks[i] = malloc(size), 1, size);
        if (round < 2)
            for (int i = 0; i < TAKEN; i++) free(blocks[i]);
    }
    for (int i = home; i < TAKEN; i += 1 + home) free(blocks[i]);
    if (home) malloc_trim(0);
    realloc(blocks[apart | home], apart % 200 ? size - 1 : size / 2 + 8);
}

PROMISE(is_not_resized_in_a_slab_or_in_a_magazine_of_the_depot) {
    for (size_t size = 16; size <= 48; size += 16)
        for (int home = 0; home < 2; home++)
            for (int apart = 100; apart < 4000; apart += 500) ENDS(resize_freed(size, apart, home));
}

/* What free knows of a block it knows of the address 256 GiB before it, too. */
static void use_an_address_like(char *block, bool resize) {
    char *others = block - (UINT64_C(1) << 38), *place = (char *)((uintptr_t)others & ~(uintptr_t)0xffff);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(place, 128 * KIB, PROT_READ | PROT_WRITE, flags, -1, 0) != place) _exit(1);
    if (resize) realloc(others, malloc_usable_size(block) / 4 * 3);
    else malloc_usable_size(others);
}

PROMISE(what_lies_where_a_block_might_is_not_resized) {
    for (size_t size = 48; size < 500 * KIB; size *= 4) {
        ENDS(use_an_address_like(malloc(size), true));
        ENDS(use_an_address_like(malloc(size), false));
    }
}

/* What is written to a block that is free is noticed before the block is taken again: also where the block goes from
 * one place to another after it (`early`), or has gone before. */
static void write_to_freed(size_t size, int freed, int early) {
    static char *blocks[TAKEN];
    for (int i = 0; i < TAKEN; i++) blocks[i] = malloc(size);
    for (int i = 0; i < TAKEN; i++) {
        free(blocks[i]);
        if (early && i == freed + 20) memset(blocks[freed], 0x41, 16);
    }
    if (!early) memset(blocks[freed], 0x41, 16);
    for (int i = 0; i < TAKEN; i++) malloc(size);
}

PROMISE(a_write_to_a_free_block_is_noticed_wherever_it_lies) {
    for (size_t size = 16; size <= 1024; size *= 4)
        for (int early = 0; early < 2; early++)
            for (int freed = 0; freed < 600; freed += 29) ENDS(write_to_freed(size, freed, early));
}

/* A short run is freed twice, or resized when it is free, with many freed before and after, by this thread or by another
 * one, which passes on what this one asks for. Those had again come from where threads keep them in several ways. */
enum { SHORT_RUNS = 125 }; /* the last ones leave room in hand for one more */
enum taking { PLAINLY, ZEROED, ALIGNED, AFTER_A_TRIM, TAKINGS };
static char *short_runs[SHORT_RUNS];
static struct {
    enum crime crime;
    size_t size;
    int victim;
} short_plan;
static pthread_barrier_t short_runs_there;
static void *free_short_runs(void) {
    for (int i = 0; i < SHORT_RUNS; i++) free(short_runs[i]);
    if (short_plan.crime == RESIZE) return realloc(short_runs[short_plan.victim], short_plan.size - 1);
    free(short_runs[short_plan.victim]);
    return malloc(short_plan.size);
}

static void *free_short_runs_there(void *taken) {
    free(malloc(16)); /* now it may have something to pass on */
    pthread_barrier_wait(&short_runs_there);
    pthread_barrier_wait(&short_runs_there);
    *(void **)taken = free_short_runs();
    pthread_barrier_wait(&short_runs_there);
    pthread_barrier_wait(&short_runs_there);
    return taken;
}

static int misuse_short_run(enum taking taking, bool elsewhere) {
    static char *taken[2 * SHORT_RUNS];
    size_t size = short_plan.size;
    pthread_t other;
    alarm(20);
    pthread_barrier_init(&short_runs_there, NULL, 2);
    if (elsewhere && pthread_create(&other, NULL, free_short_runs_there, taken) != 0) return EXIT_UNTRIED;
    if (elsewhere) pthread_barrier_wait(&short_runs_there);
    for (int i = 0; i < SHORT_RUNS; i++) short_runs[i] = malloc(size);
    if (!elsewhere) taken[0] = free_short_runs();
    else
        for (int step = 0; step < 2; step++) pthread_barrier_wait(&short_runs_there);
    if (taking == AFTER_A_TRIM) malloc_trim(0);
    for (int i = 1; i < 2 * SHORT_RUNS; i++)
        taken[i] = taking == ZEROED    ? calloc(1, size)
                   : taking == ALIGNED ? aligned_alloc(4 * KIB, size)
                                       : malloc(size);
    return two_are_one(taken, 2 * SHORT_RUNS);
}

PROMISE(a_short_run_has_one_owner_wherever_it_lies) {
    for (int round = 0; round < 4 * SHORT_RUNS; round++) {
        short_plan.crime = round / 2 % 2 ? RESIZE : FREE_AGAIN;
        short_plan.size = round % 3 ? 52 * KIB : 300 * KIB;
        short_plan.victim = round / 4;
        pid_t child = child_begins();
        if (child == 0) _exit(misuse_short_run(round % 7 % TAKINGS, round % 2));
        expect_one_owner(child);
    }
}

/* A run that was freed, or that an address lies within, is neither freed nor resized, nor is its length told. `grown`:
 * it is address space in which a block grows. That a short one is freed again is noticed when it is taken again, as it
 * is for shorter blocks. */
static void misuse_run(size_t size, bool grown, bool freed, int how) {
    char *block = grown ? realloc(realloc(malloc(40 * KIB), size), 2 * size) : malloc(size), *beside = malloc(size);
    if (freed) free(block);
    else block += 4 * KIB;
    alarm(10);
    if (how == 0) free(block);
    if (how == 1) realloc(block, size - 8 * KIB);
    if (how == 2) malloc_usable_size(block);
    free(beside);
    for (int i = 0; i < 3; i++) malloc(grown ? 2 * size : size);
}

PROMISE(a_run_that_is_nobodys_ends_who_uses_it) {
    static const size_t sizes[] = {50 * KIB, 100 * KIB, 300 * KIB, 4 * MIB};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int way = 0; way < 12; way++) ENDS(misuse_run(sizes[s], way % 2, way / 2 % 2, way / 4));
}

static int by_word(const void *one, const void *two) {
    uintptr_t a = **(uintptr_t *const *)one, b = **(uintptr_t *const *)two;
    return a < b ? -1 : a > b;
}

/* The word that most of many free blocks begin with: what whoever forges a link has to know. Blocks so long that the
 * first one in the depot leads to all of its magazine's, whose first words then lead nowhere. */
STEP(what_free_blocks_begin_with) {
    static uintptr_t *blocks[TAKEN];
    for (int i = 0; i < TAKEN; i++) blocks[i] = malloc(4 * KIB);
    for (int i = 0; i < TAKEN; i++) free(blocks[i]);
    qsort(blocks, TAKEN, sizeof *blocks, by_word);
    int most = 0, first = 0;
    for (int i = 1, same = 0; i < TAKEN; i++) {
        same = *blocks[i] == *blocks[i - 1] ? same + 1 : 0;
        if (same > most) most = same, first = i;
    }
    HOLDS(most > TAKEN / 4);
    printf("%lx\n", (unsigned long)*blocks[first]);
}
