/* site.c: call-site rules. A site is the return address of an allocation above 1 KiB; its rule says how such requests
 * are served, whatever their size. Off by default, and then it costs that path one load; on, it costs one table look-up
 * without a search.
 *
 * Learned rules: a watched run remembers the site that asked for it. A site most of whose watched runs grow is routed
 * to growth windows, so that its next block never moves. Only a site's first runs are watched, and then one in so many,
 * because a watched run takes the slow path. Set by hand: any rule for any address. */

enum { SITES = 1024, SITE_TRIAL = 16, SITE_AGAIN = 64 }; /* runs watched: SITE_TRIAL first, then 1 in SITE_AGAIN */

struct site {
    _Atomic uintptr_t address; /* 0: free */
    _Atomic uint32_t rule;     /* HAK_SITE_... */
    _Atomic uint32_t allocations, growths;
    _Atomic uint32_t by_hand;
};

static struct site sites[SITES];

/* The site's row. Another site that has it gives way, unless its rule was set by hand: then NULL. Losing a count to a
 * race is harmless: rules are advice. */
static struct site *site_row(uintptr_t address)
{
    struct site *site = &sites[(address * UINT64_C(0x9E3779B97F4A7C15)) >> 54];
    if (LIKELY(atomic_load_explicit(&site->address, memory_order_relaxed) == address)) return site;
    if (atomic_load_explicit(&site->by_hand, memory_order_relaxed)) return NULL;
    atomic_store_explicit(&site->rule, HAK_SITE_NONE, memory_order_relaxed);
    atomic_store_explicit(&site->allocations, 0, memory_order_relaxed);
    atomic_store_explicit(&site->growths, 0, memory_order_relaxed);
    atomic_store_explicit(&site->address, address, memory_order_relaxed);
    return site;
}

/* Counts one allocation of the site. Result: its rule; *watched: is this allocation to be watched? */
static uint32_t site_visit(uintptr_t address, bool *watched)
{
    struct site *site = site_row(address);
    if (site == NULL) return *watched = false, HAK_SITE_NONE;
    uint32_t before = atomic_load_explicit(&site->allocations, memory_order_relaxed);
    atomic_store_explicit(&site->allocations, before + 1, memory_order_relaxed);
    *watched = before < SITE_TRIAL || before % SITE_AGAIN == 0;
    return atomic_load_explicit(&site->rule, memory_order_relaxed);
}

/* A block of site `number` (0: unknown) had to move to grow. Where most of its watched blocks do, GROWTH becomes its
 * rule. */
static void site_grew(uint32_t number)
{
    if (number == 0) return;
    struct site *site = &sites[number - 1];
    uint32_t grown = atomic_fetch_add_explicit(&site->growths, 1, memory_order_relaxed) + 1;
    uint32_t seen = atomic_load_explicit(&site->allocations, memory_order_relaxed);
    uint32_t watched = seen < SITE_TRIAL ? seen : SITE_TRIAL + (seen - 1) / SITE_AGAIN;
    if (seen >= SITE_TRIAL && 2 * grown > watched && !atomic_load_explicit(&site->by_hand, memory_order_relaxed))
        atomic_store_explicit(&site->rule, HAK_SITE_GROWTH, memory_order_relaxed);
}

static uint32_t site_number(uintptr_t address)
{
    const struct site *site = site_row(address);
    return site != NULL ? (uint32_t)(site - sites) + 1 : 0;
}

int hak_site_set(uint64_t address, int rule)
{
    bool good = address != 0 && rule >= HAK_SITE_NONE && rule <= HAK_SITE_GROWTH;
    struct site *site = good ? site_row((uintptr_t)address) : NULL;
    if (site == NULL) return -1;
    atomic_store(&site->by_hand, rule != HAK_SITE_NONE);
    atomic_store(&site->rule, (uint32_t)rule);
    return 0;
}

size_t hak_site_read(hak_site_t *rows, size_t capacity)
{
    size_t n = 0;
    for (size_t i = 0; i < SITES; i++) {
        uintptr_t address = atomic_load_explicit(&sites[i].address, memory_order_relaxed);
        if (address == 0 || n++ >= capacity) continue;
        rows[n - 1] = (hak_site_t){.address = address,
                                   .rule = (int32_t)atomic_load(&sites[i].rule),
                                   .by_hand = (int32_t)atomic_load(&sites[i].by_hand),
                                   .allocations = atomic_load(&sites[i].allocations),
                                   .growths = atomic_load(&sites[i].growths)};
    }
    return n;
}
