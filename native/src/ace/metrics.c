/* metrics.c: two snapshots make a window, and a window makes a reward. Snapshots read the counters that slow paths
 * keep, and levels derived from them. The program's threads are read through the registry of heaps and never
 * stopped. */

/* One class, all heaps together. */
struct class_counts {
    hak_window_t window; /* counts and levels so far */
    uint64_t state;    /* a hash of all magazines: changes while the class is in use, even where every call is a hit */
    uint32_t capacity; /* blocks, with most of those at work, as if there were few threads: owners take up a new one at
                          their next refill or spill */
};

static uint64_t cpu_then, cpu_told; /* when the kernel was last asked (0: not yet in this process), and what it said */

/* CPU time of the process until now, evened out: the kernel adds that of threads on other cores at their ticks, every 1
 * to 10 ms, so of two windows of 2 ms one would see next to nothing and the next one all. A step that looks at many
 * classes asks the kernel once. A time far behind the last one is of another clock, as that of steps by hand may be.
 * Under ACE's lock. */
static uint64_t cpu_flow(uint64_t now)
{
    const double evened = 20e6, fresh = 0.2e6; /* ns; windows much longer than the former are as the kernel tells */
    static double rate, flow;
    double passed = now > cpu_then ? (double)(now - cpu_then) : 0;
    bool anew = cpu_then == 0 || now + (uint64_t)evened < cpu_then;
    if (!anew && passed < fresh) return (uint64_t)(flow + rate * passed);
    uint64_t cpu = os_cpu_ns();
    if (anew) {
        rate = 0;
        flow = (double)cpu;
    } else {
        rate += ((double)(cpu - cpu_told) / passed - rate) * passed / (passed + evened);
        flow += rate * passed;
    }
    cpu_then = now;
    cpu_told = cpu;
    return (uint64_t)flow;
}

/* Each heap votes for its capacity, with this weight for each visit to its magazines since the last look. A thread that
 * rests takes up no new capacity, so its one plain vote counts only where no heap had a visit. */
#define VISIT_WEIGHT (INT64_C(1) << 24)

/* A snapshot of one class. `now` is the time and also that of the CPU time: between two readings of the clock this
 * thread may lose its core for longer than the window. */
static struct class_counts class_read(unsigned class, uint64_t now)
{
    struct class_counts c = {.window = {.end_ns = now, .cpu_ns = cpu_flow(now)}};
    int64_t held = 0, votes = 0;
    bool used = false;
    lock_take(&heap_lock); /* while it is held no heap changes hands */
    int64_t out = atomic_load(&moved_otherwise[class]);
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        uint32_t capacity = PEEK(heap->capacity_of_few[class]);
        if (capacity == 0) continue; /* this heap never used the class */
        used = true;
        uint32_t refills = PEEK(heap->refills[class]), spills = PEEK(heap->spills[class]);
        uint32_t swaps = PEEK(heap->swaps[class]), sum = refills + spills + swaps;
        c.window.refills += refills;
        c.window.spills += spills;
        c.window.swaps += swaps;
        out += PEEK(heap->moved[class]);
        bool owned = heap_is_owned(heap);
        int64_t weight = (uint32_t)(sum - heap->seen[class]) * VISIT_WEIGHT + owned;
        heap->seen[class] = sum;
        if (capacity == c.capacity) votes += weight; /* majority by Boyer and Moore's vote */
        else if (weight <= votes) votes -= weight;
        else c.capacity = capacity, votes = weight - votes;
        if (!owned) continue;
        int64_t loaded = hand_blocks(heap, class);
        out -= loaded;
        held += loaded + spare_blocks(heap, class);
        c.state = (c.state * 31 + (uintptr_t)loaded) * 31 + PEEK(PEEK(heap->bins.small[class].top)[-1]);
    }
    lock_drop(&heap_lock);
    if (!used) return c; /* as most classes in most programs: the cache lines of their depots are not touched */
    if (c.capacity == 0) c.capacity = magazine_capacity(class); /* the threads that used it have ended */
    struct depot_counts depot = depot_read(class);
    c.window.contended = depot.contended;
    c.window.cached_bytes = (uint64_t)(held + (int64_t)depot.blocks) * classes[class].size;
    c.window.live_bytes = out > 0 ? (uint64_t)out * classes[class].size : 0;
    return c;
}

static uint64_t syscalls_read(void)
{
    uint64_t sum = 0;
    for (enum shared_stat row = STAT_sys_mmap; row <= STAT_sys_mbind; row++) sum += stat_shared_read(row);
    return sum;
}

/* What a slow learner looks at: a snapshot of the allocator as a whole. */
static hak_window_t whole_read(uint64_t now)
{
    struct levels levels;
    levels_read(&levels);
    hak_window_t window = {.end_ns = now,
                           .cpu_ns = cpu_flow(now),
                           .faults = os_faults(),
                           .syscalls = syscalls_read(),
                           .cached_bytes = levels.value[STAT_cached_bytes] + levels.value[STAT_dirty_bytes],
                           .live_bytes = levels.value[STAT_in_use_bytes]};
    window.refills = heap_stat_total(STAT_refills);
    window.spills = heap_stat_total(STAT_spills);
    window.contended = levels.value[STAT_depot_contended];
    window.purged_bytes = stat_shared_read(STAT_purged_bytes);
    return window;
}

/* Counts become differences, levels stay as they are at the end. Heaps count the visits of a class in 32 bits, so the
 * sum over heaps is right modulo 2^32, and so is the difference. */
static hak_window_t window_between(const hak_window_t *before, const hak_window_t *after)
{
    hak_window_t w = *after;
    w.begin_ns = before->end_ns;
    w.cpu_ns -= before->cpu_ns;
    w.refills = (uint32_t)(w.refills - before->refills);
    w.spills = (uint32_t)(w.spills - before->spills);
    w.swaps = (uint32_t)(w.swaps - before->swaps);
    w.contended -= before->contended;
    w.faults -= before->faults;
    w.syscalls -= before->syscalls;
    w.purged_bytes -= before->purged_bytes;
    return w;
}

/* --- what events cost on this machine ----------------------------------------------------------------------------- */

static hak_ace_costs_t ace_costs;

static double probe(void (*once)(void), int times)
{
    uint64_t begin = os_now_ns();
    for (int i = 0; i < times; i++) once();
    return (double)(os_now_ns() - begin) / times;
}

static void *probe_page;
static void probe_fault(void)
{
    os_purge(probe_page, os_page);
    *(volatile char *)probe_page = 1;
}
static void probe_call(void) { os_purge(probe_page, os_page); }
static void probe_exchange(void)
{
    static struct chain chain;
    static uintptr_t word;
    chain = (struct chain){(uintptr_t)&word, 1};
    depot_push(&depots[0][0], 0, chain); /* class 0 is nobody's */
    depot_pop(&depots[0][0], 0);
}

/* ns for a byte that the kernel clears: with huge pages one fault clears 2 MiB. What the kernel clears lies in no near
 * cache, so more is cleared here than a first cache holds, and each byte only once. */
static double probe_clear(void)
{
    const size_t bytes = SUPERSLAB_SMALL;
    char *memory = os_map(bytes);
    if (memory == NULL) return 0;
    for (size_t at = 0; at < bytes; at += os_page) *(volatile char *)(memory + at) = 1;
    uint64_t begin = os_now_ns();
    memset(memory, 0, bytes);
    double took = (double)(os_now_ns() - begin) / (double)bytes;
    os_unmap(memory, bytes);
    return took;
}

/* Runs once, in the thread that learns. An exchange with the depot is the cheap part of a refill or spill; with the
 * call, and the cache lines that come with another magazine, it costs about four of these. A swap is the call alone,
 * and about as dear as one exchange: two to four swaps in a burst take 30 to 120 ns, where an exchange takes 25. */
static void costs_measure(void)
{
    if (ace_costs.refill != 0 || (probe_page = os_map(os_page)) == NULL) return;
    double exchange = probe(probe_exchange, 2000) / 2;
    double call = probe(probe_call, 200), fault = probe(probe_fault, 200);
    ace_costs = (hak_ace_costs_t){.refill = 4 * exchange,
                                  .spill = 4 * exchange,
                                  .swap = exchange,
                                  .contention = 8 * exchange,
                                  .fault = fault > call ? fault - call : fault,
                                  .syscall = call,
                                  .clear = probe_clear()};
    os_unmap(probe_page, os_page);
}

/* The part of the reward that cached memory costs. It is set against what the process has resident: a magazine costs
 * the same bytes in every program, but not the same share, and the shares of all classes together are at most 1. */
static double window_price(const hak_window_t *w, uint64_t rss)
{
    if (rss == 0) return 0.0; /* unknown */
    return (double)knob(KNOB_ace_price_ppm) * 1e-6 * (double)w->cached_bytes / ((double)rss + 1.0);
}

/* 1, less the share of CPU time that the allocator's events cost, less the price of what it caches: a number without a
 * unit, at most 1. Cost is set against time and not against allocations, because these are not counted: a malloc and a
 * free that both hit leave no trace, so a window without a visit to a slow path may hold none or millions. For one
 * program, with a allocations in time T at a cost of c each, the share c a / T falls with c, whatever the rate a / T;
 * and unlike c it weighs a size by how much the program uses it. */
static double window_reward(const hak_window_t *w, uint64_t rss)
{
    double cost = (double)w->refills * ace_costs.refill + (double)w->spills * ace_costs.spill +
                  (double)w->swaps * ace_costs.swap + (double)w->contended * ace_costs.contention +
                  (double)w->faults * ace_costs.fault + (double)w->syscalls * ace_costs.syscall +
                  (double)w->purged_bytes * ace_costs.clear;
    double share = cost / ((double)w->cpu_ns + 1.0);
    return 1.0 - (share < 1.0 ? share : 1.0) - window_price(w, rss);
}
