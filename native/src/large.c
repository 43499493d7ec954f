/* large.c: blocks of 1 MiB and more, and blocks that grow.
 *
 * Large blocks are runs too. From the threshold on (a knob; twelve values are the arms of ACE's chooser) a freed one goes
 * back to the kernel at once; below it, it is kept like any run.
 *
 * A block that grows past its run is moved, once, into a growth window: address space of 64 MiB of which only the used
 * part costs memory. From then on it grows in place. A freed window keeps its pages for the next block that grows,
 * until they have been idle for the purge delay. */

static struct span *windows;                 /* free ones, last freed first; under arena_lock */
static _Atomic size_t window_units;          /* in free windows, units that may hold pages */

static struct span *window_take(struct heap *heap, size_t size)
{
    size_t units = run_units(size);
    if (units > GROWTH_UNITS || !knob(KNOB_growth_windows)) return NULL;
    lock_take(&arena_lock);
    struct span *window = windows;
    if (window != NULL) {
        windows = window->next;
        atomic_fetch_sub_explicit(&window_units, window->touched, memory_order_relaxed);
    } else if ((window = arena_take(GROWTH_UNITS, SUPERSLAB_LARGE / UNIT_BYTES)) != NULL) {
        run_colour(heap, window);
    }
    lock_drop(&arena_lock);
    if (window == NULL) return NULL;
    run_begin(window, size, units);
    heap->run_held += run_touched_bytes(window);
    return window;
}

static void window_give(struct heap *heap, struct span *window, uint64_t now)
{
    if (heap != NULL) heap->run_held -= size_min(heap->run_held, run_touched_bytes(window));
    lock_take(&arena_lock);
    window->freed_ns = now;
    window->next = windows;
    windows = window;
    atomic_fetch_add_explicit(&window_units, window->touched, memory_order_relaxed);
    lock_drop(&arena_lock);
}

/* Gives windows idle since `horizon` back to the arena, without their pages. Result: bytes. */
static size_t windows_purge(uint64_t horizon)
{
    size_t bytes = 0;
    lock_take(&arena_lock);
    for (struct span **at = &windows; *at != NULL;) {
        struct span *window = *at;
        if (window->freed_ns > horizon) {
            at = &window->next;
            continue;
        }
        *at = window->next;
        atomic_fetch_sub_explicit(&window_units, window->touched, memory_order_relaxed);
        lock_drop(&arena_lock);
        size_t length = run_touched_bytes(window);
        bool gone = length == 0 || os_purge((void *)window->address, length);
        if (gone) bytes += length;
        lock_take(&arena_lock);
        arena_give(window, gone ? 0 : window->touched, horizon);
        at = &windows;
    }
    lock_drop(&arena_lock);
    return bytes;
}

static ALWAYS_INLINE bool large_is_window(const struct span *run) { return run->units == GROWTH_UNITS; }

/* Frees a run that its thread does not keep. */
static void large_free(struct heap *heap, struct span *run, uint64_t now)
{
    if (run->size >= (size_t)knob(KNOB_large_threshold) && os_purge((void *)run->address, run_touched_bytes(run))) run->touched = 0;
    mid_spill(heap, run, now);
}

/* Lets a live run serve another size where it lies; false where it cannot. */
static bool large_resize(struct heap *heap, struct span *run, size_t size)
{
    size_t units = run_units(size);
    if (units > run->units) {
        if (large_is_window(run)) return false;
        lock_take(&arena_lock);
        bool extended = arena_extend(run, (uint32_t)units);
        lock_drop(&arena_lock);
        if (!extended) return false;
    } else if (units < run->units / 2 && !large_is_window(run)) {
        return false;
    }
    run->size = size;
    if (run->touched < units) {
        heap->run_held += (units - run->touched) << UNIT_SHIFT;
        run->touched = (uint32_t)units;
    }
    stat_add(heap, STAT_growths, 1);
    return true;
}
