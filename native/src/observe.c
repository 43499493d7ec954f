/* observe.c: the heap read from outside: levels are derived, counters summed, spans and magazines listed. No allocation
 * calls anything here. Other threads' magazines are read as they stand, without stopping the threads. */

/* Calls visit(span) for every span below the frontiers. Holds arena_lock, so that no span changes its shape. */
static void spans_visit(void (*visit)(const struct span *span, void *to), void *to)
{
    lock_take(&arena_lock);
    uint32_t count = atomic_load(&arena_count);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t unit = 0; unit < arenas[i].born;) {
            const struct span *span = &arenas[i].spans[unit];
            visit(span, to);
            unit += span->units != 0 ? span->units : 1;
        }
    lock_drop(&arena_lock);
}

static uint32_t slab_out(const struct span *slab)
{
    uint32_t carved = PEEK(slab->carved), returned = PEEK(slab->returned);
    return carved > returned ? carved - returned : 0;
}

static uint32_t spare_blocks(const struct heap *heap, unsigned class) { return PEEK(heap->spare[class].blocks); }

/* --- levels ------------------------------------------------------------------------------------------------------- */

struct levels {
    uint64_t value[LEVEL_STAT_COUNT];
    uint64_t kept_bytes; /* in runs that threads keep */
};

static void level_span(const struct span *span, void *to)
{
    uint64_t *value = ((struct levels *)to)->value, bytes = span_bytes(span);
    if (span->kind == SPAN_SLAB) {
        value[STAT_committed_bytes] +=
            bytes - ((uint64_t)__builtin_popcount(PEEK(span->bare)) << slab_part_shift(span));
        value[STAT_in_use_bytes] += (uint64_t)slab_out(span) * classes[span->class].size;
    } else if (span->kind == SPAN_RUN) {
        value[STAT_in_use_bytes] += run_is_out(span) ? PEEK(span->size) : 0;
        value[STAT_committed_bytes] += run_touched_bytes(span); /* last: it falls after the size, and rises before */
    }
}

static void level_heaps(struct levels *levels)
{
    uint64_t *value = levels->value;
    value[STAT_live_blocks] += orphan_stats[STAT_refilled_blocks] - orphan_stats[STAT_spilled_blocks];
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        value[STAT_live_blocks] +=
            heap->stats[STAT_refilled_blocks] - heap->stats[STAT_spilled_blocks]; /* ended threads' heaps count, too */
        if (!heap_is_owned(heap)) continue;
        value[STAT_heaps]++;
        for (unsigned class = 1; class < CLASSES; class ++) {
            uint64_t loaded = hand_blocks(heap, class);
            value[STAT_cached_bytes] += (loaded + spare_blocks(heap, class)) * classes[class].size;
            value[STAT_live_blocks] -= loaded;
        }
        for (unsigned length = 1; length <= RUN_SHORT; length++)
            value[STAT_cached_bytes] += shorts_count(heap, length) * short_size(length);
        levels->kept_bytes += PEEK(heap->kept.bytes);
    }
}

static void levels_read(struct levels *levels)
{
    *levels = (struct levels){.kept_bytes = 0};
    uint64_t *value = levels->value;
    spans_visit(level_span, levels);
    lock_take(&heap_lock);
    level_heaps(levels);
    lock_drop(&heap_lock);
    for (uint32_t i = 0; i < atomic_load(&arena_count); i++)
        value[STAT_reserved_bytes] += arenas[i].reserved ? arenas[i].range : PEEK(arenas[i].writable);
    for (unsigned row = 1; row < ROWS; row++) {
        struct depot_counts depot = depot_read(row);
        value[STAT_cached_bytes] += depot.blocks * row_size(row);
        value[STAT_depot_pushes] += depot.pushes;
        value[STAT_depot_pops] += depot.pops;
        value[STAT_depot_contended] += depot.contended;
    }
    uint64_t used =
        value[STAT_in_use_bytes]; /* includes blocks in magazines, depots and hand, but no other kept runs */
    value[STAT_live_bytes] = used - size_min(used, value[STAT_cached_bytes]);
    value[STAT_cached_bytes] += levels->kept_bytes;
    uint64_t free_bytes = (uint64_t)(atomic_load(&dirty_units) + atomic_load(&slab_dirty_units)) << UNIT_SHIFT;
    value[STAT_dirty_bytes] = free_bytes + ((uint64_t)atomic_load(&window_units) << UNIT_SHIFT);
    value[STAT_committed_bytes] += free_bytes; /* those in windows were counted with the spans */
}

static uint64_t heap_stat_total(enum heap_stat row)
{
    uint64_t total = atomic_load_explicit(&orphan_stats[row], memory_order_relaxed);
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next)
        total += atomic_load_explicit(&heap->stats[row], memory_order_relaxed);
    return total;
}

int hak_stat_count(void) { return STAT_COUNT; }

int hak_stat_read(hak_stat_t *rows, int capacity)
{
    struct levels levels;
    levels_read(&levels);
    int n = 0;
    for (; n < capacity && n < STAT_COUNT; n++) {
        int shared = n - HEAP_STAT_COUNT, level = shared - SHARED_STAT_COUNT;
        rows[n] = stat_rows[n];
        rows[n].value = shared < 0  ? heap_stat_total((enum heap_stat)n)
                        : level < 0 ? stat_shared_read((enum shared_stat)shared)
                                    : levels.value[level];
    }
    return n;
}

/* --- the heap drawn ----------------------------------------------------------------------------------------------- */

struct walk {
    hak_span_t *spans;
    size_t capacity, seen;
};

static void walk_span(const struct span *span, void *to)
{
    struct walk *walk = to;
    if (walk->seen++ >= walk->capacity) return;
    hak_span_t *out = &walk->spans[walk->seen - 1];
    *out = (hak_span_t){.address = span->address, .size = span_bytes(span)};
    if (span->kind == SPAN_SUPERSLAB || span->kind == SPAN_SLAB) out->superslab = superslab_address(superslab_of(span));
    if (span->kind == SPAN_SLAB) {
        out->kind = HAK_SPAN_SLAB;
        out->block_size = classes[span->class].size;
        out->blocks = classes[span->class].slab_blocks;
        out->carved = PEEK(span->carved);
        out->used = slab_out(span);
        out->heap = PEEK(span->heap);
    } else if (span->kind == SPAN_RUN) {
        out->kind = large_is_window(span) ? HAK_SPAN_WINDOW : HAK_SPAN_RUN;
        out->block_size = (uint32_t)size_min(PEEK(span->size), UINT32_MAX);
        out->blocks = 1;
        out->used = run_is_out(span);
    } else if (span->kind == SPAN_FREE && span->zeroed) {
        out->kind = HAK_SPAN_PURGED;
    }
}

size_t hak_heap_walk(hak_span_t *spans, size_t capacity)
{
    struct walk walk = {spans, capacity, 0};
    spans_visit(walk_span, &walk);
    return walk.seen;
}

size_t hak_magazine_walk(hak_magazine_t *magazines, size_t capacity)
{
    size_t seen = 0;
    lock_take(&heap_lock);
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        if (!heap_is_owned(heap)) continue;
        for (unsigned class = 1; class < CLASSES; class ++) {
            uint32_t loaded = hand_blocks(heap, class), spare = spare_blocks(heap, class);
            uint32_t in_force = PEEK(heap->capacity[class]);
            if (in_force == 0 || seen++ >= capacity) continue;
            magazines[seen - 1] = (hak_magazine_t){
                heap->number, classes[class].size, loaded, spare, in_force, (uint32_t)depot_read(class).magazines};
        }
    }
    lock_drop(&heap_lock);
    return seen;
}

/* --- HAKMEM_SS_OS_STATS=1 ----------------------------------------------------------------------------------------- */

static int observe_stderr = STDERR_FILENO;
static struct file_id observe_file; /* the file that this descriptor referred to at start */

/* Keeps a descriptor of stderr: many programs close theirs before the destructors of libraries run. */
static void observe_begin(void)
{
    if (!knob(KNOB_ss_os_stats)) return;
    observe_stderr = os_keep_open(STDERR_FILENO);
    observe_file = os_file_id(observe_stderr);
}

__attribute__((destructor)) static void observe_exit(void)
{
    if (!knob(KNOB_ss_os_stats)) return;
    struct file_id file = os_file_id(observe_stderr);
    bool same = file.device == observe_file.device && file.number == observe_file.number;
    if (!same && observe_stderr != STDERR_FILENO) return; /* by now it is a file of the program's */
    bool counted = !knob(KNOB_force_libc_alloc);
    struct line line = {0};
    line_text(&line, counted ? "hakmem: system calls:" : "hakmem: system calls of libc's allocator are not counted");
    for (enum shared_stat row = STAT_sys_mmap; counted && row <= STAT_sys_mbind; row++) {
        line_text(&line, " ");
        line_text(&line, stat_rows[HEAP_STAT_COUNT + row].name + sizeof "sys_" - 1);
        line_text(&line, "=");
        line_number(&line, (int64_t)stat_shared_read(row));
    }
    line_write(&line, observe_stderr);
}
