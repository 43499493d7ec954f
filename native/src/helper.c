/* helper.c: the one background thread. It tidies while much memory is free, and calls ACE's steps while ACE is on;
 * otherwise it sleeps in the kernel until somebody pokes it. It blocks all signals, is started late (never from inside
 * a lock), is not inherited by children, and ends itself when the program's last thread has gone. */

#include <limits.h>
#include <signal.h>

#define HELPER_LOOKS_NS UINT64_C(500000000)  /* between looks for threads that ended unheard */
#define HELPER_AGAIN_NS UINT64_C(1000000000) /* until it is tried again where it could not start; doubled each time */

enum helper_state { HELPER_NONE, HELPER_STARTING, HELPER_RUNS };
static _Atomic uint32_t helper_state;
static _Atomic uint32_t helper_word; /* raised by every poke; slept on */
static _Atomic bool helper_sleeps;
static _Atomic bool helper_wanted;    /* ACE is on: a helper must be there, in a child from its first slow calls on */
static _Atomic bool helper_due;       /* a free found that it is wanted and not there: the next allocation starts it */
static _Atomic uint64_t helper_again; /* it could not start, and is not tried again before this time ... */
static uint64_t helper_pause;         /* ... so long after the last try; written by who tries */
static sigset_t helper_mask;          /* of signals, as in the thread that started it */
static uint64_t (*helper_ace)(uint64_t now); /* ACE's step; returns ns until the next, 0: ACE is off */

static void helper_poke(void)
{
    atomic_fetch_add_explicit(&helper_word, 1, memory_order_release);
    os_futex_wake(&helper_word, 1);
}

static bool helper_has_work(void)
{
    bool due = PEEK(slabs_due) || hands_due() ||
               pending_bytes(depots_own(depots_bytes())) >= size_max((size_t)knob(KNOB_purge_batch_bytes) / 8, 1);
    return due && knob(KNOB_idle_return);
}

/* Does what is due. Result: nanoseconds until the next time; 0: not before a poke. The kernel is asked ever more seldom
 * for what it refused. */
static uint64_t helper_round(uint64_t now)
{
    bool work = helper_has_work(), again = knob(KNOB_idle_return) && atomic_load(&refused_units) != 0;
    uint64_t pause = work || again ? tidy(now, !work, SIZE_MAX) : 0;
    uint64_t ace = helper_ace != NULL ? helper_ace(now) : 0;
    return ace != 0 && (pause == 0 || ace < pause) ? ace : pause;
}

static void *helper_main(void *unused)
{
    (void)unused;
    sigset_t mask = helper_mask; /* read while no other helper can be started */
    POKE(fences_there, os_fences_begin());
    for (;;) {
        uint32_t seen = atomic_load(&helper_word); /* first: who changes what is read below raises it afterwards */
        if (atomic_load(&heaps_alive) == 0) break;
        POKE(runs_watched, PEEK(fences_there) && knob(KNOB_idle_return) && knob(KNOB_background));
        uint64_t pause = helper_round(os_now_ns());
        bool long_pause = pause == 0 || pause > tidy_pause(false);
        atomic_store(&helper_sleeps, long_pause); /* who frees from here on sees it, or what they freed is seen below */
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load(&main_has_left)) {
            heaps_bury();
            if (atomic_load(&heaps_alive) == 0) break;
            pause = pause != 0 && pause < HELPER_LOOKS_NS ? pause : HELPER_LOOKS_NS;
        }
        if (!long_pause || !helper_has_work()) os_futex_wait(&helper_word, seen, pause);
        atomic_store(&helper_sleeps, false);
    }
    POKE(runs_watched, false);
    lock_take(&heap_lock);
    sigorset(&mask, &mask, &last_mask); /* what either blocked, a thread without a heap may wait for */
    lock_drop(&heap_lock);
    atomic_store(&helper_state, HELPER_NONE);
    pthread_sigmask(SIG_SETMASK, &mask, NULL); /* the last thread of all runs the program's exit handlers */
    return NULL;
}

/* Will idle memory go back even if nobody calls the allocator? */
static bool helper_is_there(void)
{
    return knob(KNOB_idle_return) && atomic_load_explicit(&helper_state, memory_order_relaxed) == HELPER_RUNS;
}

/* In a child: its parent's helper stayed behind, and it has fetched no memory of its own. */
static void helper_child(void)
{
    POKE(runs_watched, false);
    POKE(fences_there, false);
    atomic_store(&helper_sleeps, false);
    atomic_store(&helper_state, HELPER_NONE);
    atomic_store(&helper_due, false);
    atomic_store(&fetched_units, 0);
}

extern size_t __pthread_get_minstack(const pthread_attr_t *) __attribute__((weak)); /* glibc */

static size_t helper_usual; /* bytes of a thread's stack */

/* At start, for glibc reads them under a lock under which it allocates, too. */
static void helper_prepare(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_getstacksize(&attributes, &helper_usual);
    pthread_attr_destroy(&attributes);
}

/* Bytes of the helper's stack. Static TLS lies in it and may be most of it. It has the usual size where address space
 * costs nothing, for the thread that ends last runs the program's exit handlers. */
static size_t helper_stack(const pthread_attr_t *attributes)
{
    size_t least = __pthread_get_minstack != NULL ? __pthread_get_minstack(attributes) : (size_t)PTHREAD_STACK_MIN;
    bool costless = os_address_space() == SIZE_MAX && !PEEK(arena_filled);
    return size_max(costless ? helper_usual : 0, least + 128 * 1024);
}

/* Starts the thread; harmless where that fails. The caller holds no lock. */
static void helper_start(void)
{
    uint32_t none = HELPER_NONE;
    if (os_tick_ns() < atomic_load(&helper_again)) return;
    if (!atomic_compare_exchange_strong(&helper_state, &none, HELPER_STARTING)) return;
    int saved = errno; /* whoever starts it got what they asked for */
    sigset_t all, own;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &own);
    helper_mask = own;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, helper_stack(&attributes));
    if (atomic_load(&heaps_alive) == 1) os_fences_begin(); /* it takes milliseconds once there are more threads */
    bool started = pthread_create(&thread, &attributes, helper_main, NULL) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &own, NULL);
    if (!started) {
        helper_pause = size_min(size_max(2 * helper_pause, HELPER_AGAIN_NS), AGAIN_NS);
        atomic_store(&helper_again, os_now_ns() + helper_pause);
    }
    uint32_t starting = HELPER_STARTING; /* it may have ended by now */
    atomic_compare_exchange_strong(&helper_state, &starting, started ? HELPER_RUNS : HELPER_NONE);
    errno = saved;
}

/* After an allocation: starts the helper once so much memory has been fetched that much may be free one day, or once a
 * free found it wanted. Only allocations start it, for libc frees thread blocks under the lock that starting a thread
 * takes. The caller holds no lock. */
static void helper_offer(void)
{
    if (LIKELY(atomic_load_explicit(&helper_state, memory_order_relaxed) != HELPER_NONE) || lock_passing) return;
    size_t bytes = atomic_load_explicit(&fetched_units, memory_order_relaxed) << UNIT_SHIFT;
    bool large = knob(KNOB_background) && bytes >= (size_t)knob(KNOB_background_bytes);
    if ((large || atomic_load_explicit(&helper_due, memory_order_relaxed)) && atomic_load(&heaps_alive) != 0)
        helper_start();
}

/* After a slow path on which something became free: is it time for the helper, or for a round inline? Keeps errno. The
 * caller holds no lock. */
static void helper_consider(void)
{
    size_t pending = pending_bytes(depots_own(atomic_load_explicit(&depots_told, memory_order_relaxed)));
    bool much = knob(KNOB_background) && pending >= (size_t)knob(KNOB_background_bytes);
    if (UNLIKELY(atomic_load_explicit(&helper_wanted, memory_order_relaxed)) &&
        atomic_load_explicit(&helper_state, memory_order_relaxed) == HELPER_NONE)
        atomic_store(&helper_due, true);
    bool due = PEEK(slabs_due) && knob(KNOB_idle_return);
    if (LIKELY(pending < (size_t)knob(KNOB_purge_batch_bytes) && !due)) return;
    int saved = errno;
    atomic_thread_fence(memory_order_seq_cst); /* what was freed is told before it is asked whether the helper sleeps */
    if ((due || (much && knob(KNOB_idle_return))) && atomic_load_explicit(&helper_sleeps, memory_order_relaxed))
        helper_poke();
    if (!knob(KNOB_background) || !helper_is_there()) tidy(os_tick_ns(), false, SLABS_INLINE);
    errno = saved;
}

/* A thread may free much, of which nobody hears, so it is looked at until it rests. */
static void helper_hear(void)
{
    atomic_thread_fence(memory_order_seq_cst); /* as above */
    if (atomic_load_explicit(&helper_sleeps, memory_order_relaxed)) helper_poke();
}

/* A thread has gone, and what it had in hand is free. After the last one the helper ends. */
static void helper_bereave(bool last)
{
    if (last || atomic_load(&main_has_left)) helper_poke();
    helper_consider();
}

/* What it does, at once, where the program asks for it. */
size_t hak_purge(void)
{
    uint64_t now = os_now_ns();
    if (front.heap != NULL) heap_flush(front.heap, now);
    return give_all_back(now);
}

void hak_thread_idle(void)
{
    if (front.heap == NULL) return;
    heap_flush(front.heap, os_tick_ns());
    helper_consider();
}
