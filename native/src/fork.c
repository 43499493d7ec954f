/* fork.c: the locks of all that threads share are held across a fork, so that the child begins with consistent data. */

static struct lock start_lock; /* held by start (alloc.c) */

static void lock_take_out_of_line(struct lock *lock) { lock_take(lock); }
static void lock_drop_out_of_line(struct lock *lock) { lock_drop(lock); }

static uint32_t fork_parts; /* parts whose locks the fork holds; under these locks */

/* Applies a verb (take, drop, reset) to every lock, always in the same order. All are held across a fork, so what they
 * guard is whole in the child, which has one thread. */
static void each_lock(void (*verb)(struct lock *))
{
    bool takes = verb == lock_take_out_of_line;
    uint32_t parts = takes ? 0 : fork_parts; /* who takes them may not read it yet */
    ace_each_lock(verb);
    verb(&pools.lock);
    verb(&round_lock);
    verb(&orphan_lock); /* under it slabs are taken, and runs are collected before that */
    verb(&collect_lock);
    verb(&start_lock);
    verb(&heap_lock);
    if (takes) parts = fork_parts = parts_count(); /* heap_lock is held, so no part is added */
    verb(&guard_lock);
    verb(&trim_lock);
    for (unsigned part = 0; part < parts; part++) {
        for (unsigned class = 0; class < CLASSES; class ++) verb(&class_slabs[part][class].lock);
        for (unsigned row = 0; row < ROWS; row++) verb(&depots[part][row].lock);
    }
    verb(&racks_lock);
    verb(&arena_lock);
}

/* The lock of stdio's list of files, which fork itself takes after our handler. A thread that flushes all files holds
 * it and waits for a file, whose owner may be waiting for memory, and so for our locks. So fork_prepare takes it before
 * ours; it is recursive, so fork can take it again. */
extern void _IO_list_lock(void) __attribute__((weak));
extern void _IO_list_unlock(void) __attribute__((weak));
extern void _IO_list_resetlock(void) __attribute__((weak));

static struct heap *fork_left; /* heaps that leave their lists of runs whole to a child; under collect_lock */

/* Keeps other threads away from their lists of runs until the fork has passed. Who is there now may leave them in the
 * middle of a change. */
static void fork_hold_runs(void)
{
    bool passed;
    struct heap *held = runs_can_be_collected() ? kept_ask(os_tick_ns(), true, front.heap, &passed) : NULL;
    fork_left = NULL;
    for (struct heap *heap = held, *next; heap != NULL; heap = next) {
        next = heap->kept.due;
        if (passed && !__atomic_load_n(&heap->kept.busy, __ATOMIC_ACQUIRE)) {
            heap->kept.due = fork_left;
            fork_left = heap;
        } else kept_let(&heap->kept, lock_drop);
    }
}

/* A dying thread waits for no lock, and its child's heap is as damaged as its own. */
static void fork_prepare(void)
{
    if (is_dying()) return;
    lock_take(&round_lock); /* waits for a round of purging to end while no other lock is held */
    lock_drop(&round_lock);
    if (_IO_list_lock != NULL) _IO_list_lock();
    each_lock(lock_take_out_of_line);
    fork_hold_runs();
    lock_passing = LOCKS_FORKING;
}

static void fork_parent(void)
{
    if (is_dying()) return;
    lock_passing = LOCKS_COUNT;
    for (struct heap *heap = fork_left; heap != NULL; heap = heap->kept.due) kept_let(&heap->kept, lock_drop);
    fork_left = NULL;
    each_lock(lock_drop_out_of_line);
    if (_IO_list_unlock != NULL) _IO_list_unlock();
}

/* Other threads' heaps are lost to the child, but for the runs that they kept: they may have been in the middle of a
 * change, so they are dropped, not reused. The thread that forked is the child's first one, under another number. */
static void fork_child(void)
{
    if (!is_dying()) lock_passing = LOCKS_COUNT;
    else fork_parts = PARTS; /* reset them whoever held them */
    each_lock(lock_reset);
    if (_IO_list_resetlock != NULL) _IO_list_resetlock();
    helper_child();
    forks++;
    windows_child();
    depots_child();
    POKE(slabs_due, false); /* the parent looks into them */
    for (struct heap *heap = fork_left; heap != NULL; heap = heap->kept.due) {
        kept_let(&heap->kept, lock_reset);
        heap->kept.left = true;
    }
    fork_left = NULL;
    lanes_child();
    uint32_t alive = 0;
    size_t told = 0;
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        if (heap == front.heap || heap->kept.left) told += heap->kept.told;
        if (heap == front.heap) heap->thread = os_thread(), alive++;
        else if (atomic_load(&heap->state) == HEAP_LIVE) POKE(heap->front, NULL);
    }
    atomic_store(&heaps_alive, alive);
    atomic_store(&runs_told, told); /* what else was kept can be collected by nobody */
    atomic_store(&main_has_left, false);
    ace_child();
}

/* What pthread_atfork calls in glibc. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);

/* The handlers are registered first of all, so at a fork they take the locks here last: a thread that holds another
 * library's lock still gets memory while that library's handler waits for it. They belong to no library, or libc would
 * forget them when the program ends: a thread that forks just then would hold our locks for ever. */
static void fork_begin(void) { __register_atfork(fork_prepare, fork_parent, fork_child, NULL); }
