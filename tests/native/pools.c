/* What a stack pool promises: addresses that never move, statistics that add up, misuse that is told by its code. */
#include "serve.h"
#include "hakmem.h"
#include <linux/mempolicy.h>
#include <sys/syscall.h>

enum { MANY = 100000, THREADS = 4, ROUNDS = 200, BURST = 150 };

static hak_pool_stats_t stats_of(hak_pool_t *pool) {
    hak_pool_stats_t stats;
    HOLDS(hak_pool_stats(pool, &stats) == HAK_POOL_OK);
    HOLDS(stats.hits + stats.misses == stats.allocations);
    HOLDS(stats.live <= stats.peak && stats.peak <= stats.allocations + MANY && stats.live <= stats.capacity);
    return stats;
}

/* ---- the contract ---- */

PROMISE(objects_are_aligned_apart_and_writable) {
    for (size_t alignment = 1; alignment <= 65536; alignment *= 4) {
        for (size_t size = 1; size <= 5000; size = size * 3 + 1) {
            hak_pool_t *pool = hak_pool_new(size, alignment);
            unsigned char *object[40];
            for (int i = 0; i < 40; i++) {
                HOLDS((object[i] = hak_pool_allocate(pool)) != NULL);
                HOLDS((uintptr_t)object[i] % alignment == 0);
                memset(object[i], i, size);
            }
            for (int i = 0; i < 40; i++) HOLDS(object[i][0] == i && object[i][size - 1] == i);
            HOLDS(hak_pool_destroy(pool) == HAK_POOL_OK);
        }
    }
}

PROMISE(growth_moves_no_live_object) {
    static uint64_t *object[MANY];
    hak_pool_t *pool = hak_pool_new(64, 16);
    for (uint64_t i = 0; i < MANY; i++) {
        HOLDS((object[i] = hak_pool_allocate(pool)) != NULL);
        object[i][0] = object[i][7] = i;
    }
    for (uint64_t i = 0; i < MANY; i++) HOLDS(object[i][0] == i && object[i][7] == i);
    HOLDS(stats_of(pool).live == MANY);
    hak_pool_destroy(pool);
}

static void *make_and_destroy(void *unused) {
    for (;;) hak_pool_destroy(hak_pool_new(32, 8));
    return unused;
}

PROMISE(a_fork_while_pools_are_made_leaves_a_child_that_makes_some) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, make_and_destroy, NULL);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            hak_pool_destroy(hak_pool_new(32, 8));
            _exit(0);
        }
        wait_for(child);
    }
}

PROMISE(the_last_object_freed_is_the_first_allocated) {
    hak_pool_t *pool = hak_pool_new(64, 16);
    void *a = hak_pool_allocate(pool), *b = hak_pool_allocate(pool);
    HOLDS(hak_pool_deallocate(pool, a) == HAK_POOL_OK && hak_pool_deallocate(pool, b) == HAK_POOL_OK);
    HOLDS(hak_pool_allocate(pool) == b && hak_pool_allocate(pool) == a);
    hak_pool_destroy(pool);
}

PROMISE(preallocated_objects_are_hits) {
    hak_pool_t *pool = hak_pool_with_capacity(64, 16, 50);
    HOLDS(stats_of(pool).capacity >= 50 && stats_of(pool).allocations == 0 && stats_of(pool).hit_rate == 0);
    for (int i = 0; i < 50; i++) hak_pool_allocate(pool);
    hak_pool_stats_t stats = stats_of(pool);
    HOLDS(stats.hits == 50 && stats.misses == 0 && stats.hit_rate == 1);
    for (uint64_t more = stats.capacity - 50 + 1; more > 0; more--) hak_pool_allocate(pool);
    HOLDS(stats_of(pool).misses == 1);
    hak_pool_destroy(pool);
}

PROMISE(preallocated_memory_is_resident) {
#ifdef __SANITIZE_THREAD__
    UNTRIED("the sanitizer's shadow faults too");
#endif
    struct rusage before, after;
    hak_pool_t *pool = hak_pool_with_capacity(64, 16, MANY);
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < MANY; i++) *(uint64_t *)hak_pool_allocate(pool) = 1;
    getrusage(RUSAGE_SELF, &after);
    HOLDS(after.ru_minflt - before.ru_minflt < 64);
    hak_pool_destroy(pool);
}

static uint32_t draw(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(*state >> 33);
}

/* A shadow of the pool in plain arrays: every count is known, every object carries its own mark. */
static void fuzz(hak_pool_t *pool, uint64_t seed) {
    static uint64_t *live[MANY];
    uint64_t count = 0, allocations = 0, peak = 0;
    for (int step = 0; step < 4 * MANY; step++) {
        uint32_t bits = draw(&seed);
        uint32_t wave = step / 20000 % 2 ? 30 : 70; /* percent of allocations: fills, then empties */
        if (bits % 100 < wave && count < MANY) {
            uint64_t *object = hak_pool_allocate(pool);
            HOLDS(object != NULL);
            object[0] = object[1] = (uintptr_t)object;
            live[count++] = object;
            allocations++;
            peak = count > peak ? count : peak;
        } else if (count > 0) {
            uint64_t victim = draw(&seed) % count, *object = live[victim];
            HOLDS(object[0] == (uintptr_t)object && object[1] == (uintptr_t)object);
            live[victim] = live[--count];
            HOLDS(hak_pool_deallocate(pool, object) == HAK_POOL_OK);
        }
        if (bits % 9973 == 0) HOLDS(hak_pool_shrink(pool) == HAK_POOL_OK);
        if (bits % 997 == 0) {
            hak_pool_stats_t stats = stats_of(pool);
            HOLDS(stats.allocations == allocations && stats.live == count && stats.peak >= peak);
        }
    }
    while (count > 0) HOLDS(hak_pool_deallocate(pool, live[--count]) == HAK_POOL_OK);
    HOLDS(hak_pool_shrink(pool) == HAK_POOL_OK);
    HOLDS(stats_of(pool).live == 0 && stats_of(pool).capacity == 0);
    HOLDS(hak_pool_destroy(pool) == HAK_POOL_OK);
}

PROMISE(the_owners_pool_agrees_with_its_shadow) {
    for (uint64_t seed = 1; seed <= 3; seed++) fuzz(hak_pool_new(40, 8), seed);
}

PROMISE(the_shared_pool_agrees_with_its_shadow) {
    for (uint64_t seed = 1; seed <= 3; seed++) fuzz(hak_pool_new_shared(40, 8), seed);
}

PROMISE(the_peak_of_the_owners_pool_is_exact) {
    hak_pool_t *pool = hak_pool_with_capacity(64, 16, 1000);
    void *object[300];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100 * (round + 1); i++) object[i] = hak_pool_allocate(pool);
        HOLDS(stats_of(pool).peak == (uint64_t)(100 * (round + 1)));
        for (int i = 0; i < 100 * (round + 1); i++) hak_pool_deallocate(pool, object[i]);
        HOLDS(hak_pool_shrink(pool) == HAK_POOL_OK);
        HOLDS(stats_of(pool).peak == (uint64_t)(100 * (round + 1)));
    }
    hak_pool_destroy(pool);
}

PROMISE(shrink_returns_what_is_idle_and_keeps_what_lives) {
    static uint64_t *object[MANY];
    hak_pool_t *pool = hak_pool_new(64, 16);
    for (uint64_t i = 0; i < MANY; i++) *(object[i] = hak_pool_allocate(pool)) = i;
    uint64_t full = stats_of(pool).bytes_held;
    for (uint64_t i = 1; i < MANY; i++) hak_pool_deallocate(pool, object[i]);
    HOLDS(hak_pool_shrink(pool) == HAK_POOL_OK);
    HOLDS(*object[0] == 0 && stats_of(pool).live == 1 && stats_of(pool).bytes_held < full / 50);
    for (uint64_t i = 1; i < MANY; i++) HOLDS((object[i] = hak_pool_allocate(pool)) != NULL && object[i] != object[0]);
    hak_pool_destroy(pool);
}

static long resident_pages(void) {
    long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    HOLDS(statm != NULL && fscanf(statm, "%*d %ld", &pages) == 1);
    fclose(statm);
    return pages;
}

PROMISE(ten_thousand_pools_leave_nothing_behind) {
    enum { FIRST = 2000, COUNT = FIRST + 10000 }; /* the first control blocks are new */
    long before = 0;
    for (int i = 0; i < COUNT; i++) {
        if (i == FIRST) before = resident_pages();
        hak_pool_t *pool = i % 2 ? hak_pool_new_shared(64, 16) : hak_pool_new(64, 16);
        *(int *)hak_pool_allocate(pool) = i;
        HOLDS(hak_pool_destroy(pool) == HAK_POOL_OK);
    }
    HOLDS(resident_pages() - before < 1000);
}

/* ---- misuse ---- */

PROMISE(impossible_requests_are_refused_with_their_code) {
    HOLDS(hak_pool_new(0, 8) == NULL && hak_pool_error() == HAK_POOL_SIZE);
    HOLDS(hak_pool_new(64, 0) == NULL && hak_pool_error() == HAK_POOL_ALIGNMENT);
    HOLDS(hak_pool_new(64, 24) == NULL && hak_pool_error() == HAK_POOL_ALIGNMENT);
    HOLDS(hak_pool_new_shared(SIZE_MAX, 8) == NULL && hak_pool_error() == HAK_POOL_MEMORY);
    HOLDS(hak_pool_with_capacity(64, 8, SIZE_MAX) == NULL && hak_pool_error() == HAK_POOL_MEMORY && errno == ENOMEM);
    HOLDS(hak_pool_with_capacity(64, 8, SIZE_MAX / 64) == NULL && hak_pool_error() == HAK_POOL_MEMORY);
    HOLDS(hak_pool_with_capacity(1 << 20, 8, 1 << 28) == NULL && hak_pool_error() == HAK_POOL_MEMORY);
    HOLDS(hak_pool_new(64, (size_t)1 << 62) == NULL && hak_pool_error() == HAK_POOL_MEMORY);
}

PROMISE(a_refused_preallocation_leaves_the_pool_usable) {
    hak_pool_t *pool = hak_pool_new(64, 8);
    HOLDS(hak_pool_preallocate(pool, SIZE_MAX / 128) == HAK_POOL_MEMORY);
    HOLDS(hak_pool_preallocate(pool, SIZE_MAX / 64 + 2) == HAK_POOL_MEMORY); /* 64 bytes, modulo 2^64 */
    HOLDS(hak_pool_allocate(pool) != NULL && stats_of(pool).live == 1);
    hak_pool_destroy(pool);
}

PROMISE(null_is_no_object) {
    hak_pool_t *pool = hak_pool_new(64, 8), *shared = hak_pool_new_shared(64, 8);
    HOLDS(hak_pool_deallocate(pool, NULL) == HAK_POOL_NULL && hak_pool_deallocate(shared, NULL) == HAK_POOL_NULL);
    HOLDS(stats_of(pool).live == 0 && hak_pool_allocate(pool) != NULL);
}

/* However many were made since, up to a thousand. */
PROMISE(a_destroyed_pool_says_so) {
    for (int shared = 0; shared < 2; shared++) {
        hak_pool_t *pool = shared ? hak_pool_new_shared(64, 8) : hak_pool_new(64, 8);
        void *object = hak_pool_allocate(pool);
        hak_pool_stats_t stats;
        HOLDS(hak_pool_destroy(pool) == HAK_POOL_OK);
        for (int i = 0; i < 100; i++) HOLDS(hak_pool_new(64, 8) != NULL);
        HOLDS(hak_pool_allocate(pool) == NULL && hak_pool_error() == HAK_POOL_DESTROYED);
        HOLDS(hak_pool_deallocate(pool, object) == HAK_POOL_DESTROYED);
        HOLDS(hak_pool_preallocate(pool, 1) == HAK_POOL_DESTROYED);
        HOLDS(hak_pool_stats(pool, &stats) == HAK_POOL_DESTROYED && hak_pool_shrink(pool) == HAK_POOL_DESTROYED);
        HOLDS(hak_pool_destroy(pool) == HAK_POOL_DESTROYED);
    }
}

static void *object_of_main;

static void *use_from_elsewhere(void *pool) {
    HOLDS(hak_pool_allocate(pool) == NULL && hak_pool_error() == HAK_POOL_THREAD);
    HOLDS(hak_pool_deallocate(pool, object_of_main) == HAK_POOL_THREAD);
    return NULL;
}

PROMISE(the_owners_pool_refuses_other_threads) {
    hak_pool_t *pool = hak_pool_new(64, 8);
    pthread_t thread;
    object_of_main = hak_pool_allocate(pool);
    HOLDS(pthread_create(&thread, NULL, use_from_elsewhere, pool) == 0 && pthread_join(thread, NULL) == 0);
    HOLDS(stats_of(pool).allocations == 1 && hak_pool_deallocate(pool, object_of_main) == HAK_POOL_OK);
}

PROMISE(the_checked_build_tells_foreign_and_double) {
    if (strcmp(hak_build_variant(), "checked") != 0) UNTRIED("only the checked build looks");
    for (int shared = 0; shared < 2; shared++) {
        hak_pool_t *pool = shared ? hak_pool_new_shared(64, 8) : hak_pool_new(64, 8), *other = hak_pool_new(64, 8);
        char *object = hak_pool_allocate(pool), *stranger = hak_pool_allocate(other);
        uint64_t local;
        HOLDS(hak_pool_deallocate(pool, stranger) == HAK_POOL_FOREIGN);
        HOLDS(hak_pool_deallocate(pool, &local) == HAK_POOL_FOREIGN);
        HOLDS(hak_pool_deallocate(pool, object + 8) == HAK_POOL_FOREIGN);
        HOLDS(hak_pool_deallocate(pool, object) == HAK_POOL_OK);
        HOLDS(hak_pool_deallocate(pool, object) == HAK_POOL_DOUBLE);
        HOLDS(stats_of(pool).live == 0 && hak_pool_allocate(pool) == object);
    }
}

PROMISE(every_code_has_its_sentence) {
    for (int code = HAK_POOL_OK; code >= HAK_POOL_DOUBLE; code--)
        HOLDS(strcmp(hak_pool_message(code), hak_pool_message(-1000)) != 0);
    HOLDS(strcmp(hak_pool_message(1), hak_pool_message(-1000)) == 0);
}

/* ---- threads ---- */

static hak_pool_t *common;
static void *box[THREADS][BURST];
static pthread_barrier_t barrier;

/* Every object is freed by the neighbour of the thread that took it, and carries a mark that nobody else may change. */
static void *exchange(void *argument) {
    uintptr_t me = (uintptr_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BURST; i++) {
            uintptr_t *object = hak_pool_allocate(common);
            HOLDS(object != NULL);
            object[1] = (uintptr_t)object ^ me;
            box[me][i] = object;
        }
        pthread_barrier_wait(&barrier);
        uintptr_t from = (me + 1) % THREADS;
        for (int i = 0; i < BURST; i++) {
            uintptr_t *object = box[from][i];
            HOLDS(object[1] == ((uintptr_t)object ^ from));
            HOLDS(hak_pool_deallocate(common, object) == HAK_POOL_OK);
        }
        if (round % 64 == (int)me) HOLDS(hak_pool_shrink(common) == HAK_POOL_OK);
        if (round % 16 == (int)me) stats_of(common);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

PROMISE(threads_share_a_pool) {
    pthread_t thread[THREADS];
    common = hak_pool_new_shared(48, 16);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++) HOLDS(pthread_create(&thread[i], NULL, exchange, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    hak_pool_stats_t stats = stats_of(common);
    HOLDS(stats.live == 0 && stats.allocations == (uint64_t)THREADS * ROUNDS * BURST);
    HOLDS(hak_pool_destroy(common) == HAK_POOL_OK);
}

static void *take_and_give(void *pool) {
    void *object[10];
    for (int i = 0; i < 10; i++) HOLDS((object[i] = hak_pool_allocate(pool)) != NULL);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 10; i++) HOLDS(hak_pool_deallocate(pool, object[i]) == HAK_POOL_OK);
    return NULL;
}

static void *take_many_and_give_them(void *pool) {
    static void *object[MANY];
    for (int i = 0; i < MANY; i++) object[i] = hak_pool_allocate(pool);
    for (int i = 0; i < MANY; i++) HOLDS(hak_pool_deallocate(pool, object[i]) == HAK_POOL_OK);
    return NULL;
}

PROMISE(shrink_returns_what_ended_threads_kept_at_hand) {
    hak_pool_t *pool = hak_pool_new_shared(64, 16);
    pthread_t thread;
    HOLDS(hak_pool_deallocate(pool, hak_pool_allocate(pool)) == HAK_POOL_OK); /* this thread has a place of its own */
    HOLDS(pthread_create(&thread, NULL, take_many_and_give_them, pool) == 0 && pthread_join(thread, NULL) == 0);
    HOLDS(hak_pool_shrink(pool) == HAK_POOL_OK);
    HOLDS(stats_of(pool).capacity == 0 && stats_of(pool).live == 0);
    HOLDS(hak_pool_deallocate(pool, hak_pool_allocate(pool)) == HAK_POOL_OK);
    HOLDS(hak_pool_destroy(pool) == HAK_POOL_OK);
}

PROMISE(more_threads_than_lanes_share_a_pool) {
    enum { CROWD = 100 };
    pthread_t thread[CROWD];
    hak_pool_t *pool = hak_pool_new_shared(48, 16);
    pthread_barrier_init(&barrier, NULL, CROWD);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < CROWD; i++) HOLDS(pthread_create(&thread[i], NULL, take_and_give, pool) == 0);
        for (int i = 0; i < CROWD; i++) pthread_join(thread[i], NULL);
    }
    HOLDS(stats_of(pool).live == 0 && stats_of(pool).allocations == 3 * CROWD * 10);
    HOLDS(stats_of(pool).capacity < 100 * 2 * 64 * 2);
    hak_pool_destroy(pool);
}

PROMISE(a_child_may_use_pools_made_before_the_fork) {
    hak_pool_t *pool = hak_pool_new(64, 16), *shared = hak_pool_new_shared(64, 16);
    hak_pool_allocate(shared);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 1000; i++) HOLDS(hak_pool_allocate(pool) != NULL && hak_pool_allocate(shared) != NULL);
        HOLDS(hak_pool_new_shared(64, 16) != NULL);
        _exit(0);
    }
    wait_for(child);
}

static void *keep_at_hand(void *pool) {
    HOLDS(hak_pool_deallocate(pool, hak_pool_allocate(pool)) == HAK_POOL_OK);
    pthread_barrier_wait(&barrier);
    pause();
    return NULL;
}

/* They are not in the child, so what they kept is nobody's. */
PROMISE(a_child_shrinks_what_its_parents_threads_kept_at_hand) {
#ifdef __SANITIZE_THREAD__
    UNTRIED("TSan follows no child of several threads");
#endif
    hak_pool_t *pool = hak_pool_new_shared(64, 16);
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    HOLDS(pthread_create(&thread, NULL, keep_at_hand, pool) == 0);
    pthread_barrier_wait(&barrier);
    pid_t child = fork();
    if (child == 0) {
        HOLDS(hak_pool_shrink(pool) == HAK_POOL_OK && stats_of(pool).capacity == 0);
        _exit(0);
    }
    wait_for(child);
}

enum { HEIRS = 40, TAKEN = 600 };
static void *inherited[HEIRS][TAKEN];

static void *churn(void *pool) {
    void *objects[200];
    for (;;) {
        for (int i = 0; i < 200; i++) objects[i] = hak_pool_allocate(pool);
        for (int i = 0; i < 200; i++) hak_pool_deallocate(pool, objects[i]);
    }
    return NULL;
}

static void *inherit(void *place) {
    for (int i = 0; i < TAKEN; i++) ((void **)place)[i] = hak_pool_allocate(common);
    pthread_barrier_wait(&barrier); /* each is a thread of its own */
    return NULL;
}

/* What other threads did when a process forked was half done: their objects may be lost to the child. */
PROMISE(a_child_gets_no_object_twice) {
#ifdef __SANITIZE_THREAD__
    UNTRIED("TSan follows no child of several threads");
#endif
    common = hak_pool_new_shared(64, 16);
    pthread_t threads[8], heirs[HEIRS];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, churn, common);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        HOLDS(child >= 0);
        if (child == 0) {
            pthread_barrier_init(&barrier, NULL, HEIRS);
            for (int j = 0; j < HEIRS; j++) HOLDS(pthread_create(&heirs[j], NULL, inherit, inherited[j]) == 0);
            for (int j = 0; j < HEIRS; j++) pthread_join(heirs[j], NULL);
            void **all = inherited[0];
            qsort(all, HEIRS * TAKEN, sizeof *all, by_address);
            for (int j = 1; j < HEIRS * TAKEN; j++) HOLDS(all[j] != all[j - 1]);
            _exit(0);
        }
        wait_for(child);
    }
}

/* ---- placement ---- */

PROMISE(every_policy_is_taken_or_refused_by_its_code) {
    char *pages = aligned_alloc(4096, 65536);
    HOLDS(hak_node_count() >= 1 && hak_node_current() >= 0);
    for (int policy = HAK_PLACE_DEFAULT; policy <= HAK_PLACE_BIND; policy++) {
        int code = hak_place(pages, 65536, policy, hak_node_current()), seen = -1, node = -1;
        HOLDS(code == 0 || code == -ENOSYS || code == -EPERM);
        if (code == 0 && hak_place_read(pages, &seen, &node) == 0) HOLDS(seen == policy);
        memset(pages, policy, 65536);
    }
    HOLDS(hak_place(pages, 65536, 4, 0) == -EINVAL && hak_place(pages, 65536, -1, 0) == -EINVAL);
    HOLDS(hak_place(pages, 65536, HAK_PLACE_BIND, -1) == -EINVAL && hak_place(NULL, 65536, HAK_PLACE_LOCAL, 0) == -EINVAL);
    HOLDS(hak_place(pages, 65536, HAK_PLACE_BIND, 1023) == -EINVAL);
    HOLDS(hak_place_thread(HAK_PLACE_DEFAULT, 0) != -EINVAL);
}

PROMISE(a_policy_that_is_none_of_ours_is_not_taken_for_one) {
    unsigned long first = 1;
    int seen, node;
    if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, &first, 64) != 0) UNTRIED("this kernel takes no policy");
    HOLDS(hak_place_read(NULL, &seen, &node) == -EINVAL);
    HOLDS(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0) == 0);
    HOLDS(hak_place_read(NULL, &seen, &node) == 0 && seen == HAK_PLACE_DEFAULT);
}

PROMISE(pools_are_placed_where_the_knob_says) {
    for (int policy = HAK_PLACE_LOCAL; policy <= HAK_PLACE_BIND; policy++) {
        int seen, node;
        HOLDS(hak_knob_set("placement", policy) == 0 && hak_knob_set("placement_node", hak_node_current()) == 0);
        hak_pool_t *pool = hak_pool_new(64, 16);
        uint64_t *object = hak_pool_allocate(pool);
        HOLDS(object != NULL && (*object = 1));
        if (hak_place_read(object, &seen, &node) != 0) UNTRIED("this kernel tells no policy");
        HOLDS(seen == policy && (policy != HAK_PLACE_BIND || node == hak_node_current()));
        hak_pool_destroy(pool);
    }
}
