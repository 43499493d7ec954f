/* depot.c: the full magazines of one row, a class or short runs of one length, which threads trade, and the rounds in
 * which idle memory goes back to its slabs.
 *
 * A depot has parts. A thread gives to its own part and takes from it first, so that what it freed comes back to it
 * while the lines are still in its core's cache. Blocks that come from another core cost several times as much. */

static struct depot depots[PARTS][ROWS];
static _Atomic size_t depots_told; /* bytes in all depots, each part's to within a portion */
static size_t depots_inherited;    /* bytes that a child has from its parent and leaves alone: see depots_are_shared */
static bool class_homing[CLASSES]; /* magazines of scattered blocks go home, until a depot is asked for one */

/* Brings the sum over all depots up to date, in portions, so that a visit seldom touches a line that all share. Under
 * the part's lock. */
static ALWAYS_INLINE void depot_tell(struct depot *depot, unsigned row)
{
    size_t portion = size_min(row < CLASSES ? 256 * KIB : RUN_SHORT_BYTES, (size_t)knob(KNOB_depot_bytes) / 64);
    size_t bytes = depot->blocks * row_size(row), told = (size_t)depot->told * row_size(row);
    if (LIKELY(bytes <= told + portion && told <= bytes + portion)) return;
    depot->told = depot->blocks;
    atomic_fetch_add_explicit(&depots_told, bytes - told, memory_order_relaxed);
}

static void depot_lock(struct depot *depot)
{
    if (LIKELY(lock_try(&depot->lock))) return;
    atomic_fetch_add_explicit(&depot->contended, 1, memory_order_relaxed);
    lock_wait(&depot->lock);
}

static _Atomic uint16_t class_capacity[CLASSES]; /* blocks; 0: as the knobs say. ACE writes here */

/* Blocks of the class in so many bytes, within what a magazine may hold. At least MAGAZINE_MIN; but where very many
 * threads rest with what they hold, fewer of blocks so long that these are more than a unit, down to one. */
static uint32_t magazine_fits(unsigned class, size_t bytes)
{
    size_t size = classes[class].size, rest = size_max(size_min(UNIT_BYTES / size, MAGAZINE_MIN), 1);
    size_t least = size_max(MAGAZINE_MIN / size_max(threads_share() / THREADS_MANY, 1), rest);
    return (uint32_t)size_min((size_t)knob(KNOB_magazine_blocks), size_max(bytes / size, least));
}

static uint32_t magazine_capacity(unsigned class)
{
    uint32_t learnt = atomic_load_explicit(&class_capacity[class], memory_order_relaxed);
    return learnt != 0 ? learnt : magazine_fits(class, (size_t)knob(KNOB_magazine_bytes));
}

/* How many of the usual length a magazine of so many blocks is worth, at least one. Class 0 is nobody's, and has no
 * length. */
static int32_t magazine_worth(unsigned row, uint32_t blocks)
{
    return row != 0 && row < CLASSES ? (int32_t)size_max(blocks / magazine_capacity(row), 1) : 1;
}

static void depot_push(struct depot *depot, unsigned row, struct chain chain)
{
    depot_lock(depot);
    int32_t given = PEEK(depot->given); /* once: others who share the part change it, too */
    chain_seal(chain, depot->top);
    POKE(depot->top, chain.head);
    POKE(depot->magazines, depot->magazines + 1);
    POKE(depot->blocks, depot->blocks + chain.blocks);
    POKE(depot->pushes, depot->pushes + 1);
    int32_t more = given + magazine_worth(row, chain.blocks);
    if (given < DEPOT_GIVEN) POKE(depot->given, more < DEPOT_GIVEN ? more : DEPOT_GIVEN);
    if (depot->pushes % DEPOT_TURN == 0) {
        POKE(depot->idle, depot->least);
        POKE(depot->least, depot->magazines);
        if (depot->magazines - depot->ebb < DEPOT_TURN) {
            POKE(depot->last_ebb, depot->ebb);
            POKE(depot->ebb, (uint16_t)size_min(depot->magazines, UINT16_MAX));
        }
    }
    depot_tell(depot, row);
    lock_drop(&depot->lock);
}

static struct chain depot_pop(struct depot *depot, unsigned row)
{
    struct chain chain = {0, 0};
    if (PEEK(depot->top) == 0) return chain;
    depot_lock(depot);
    if (depot->top != 0) {
        uintptr_t below;
        chain = chain_open(depot->top, &below);
        bool leads_on = row < CLASSES || below == 0 || row_has(row, below);
        if (UNLIKELY(chain.blocks == 0 || chain.blocks > MAGAZINE_MAX || !leads_on))
            fatal("free block overwritten", chain.head);
        POKE(depot->top, below);
        POKE(depot->magazines, depot->magazines - 1);
        POKE(depot->blocks, depot->blocks - chain.blocks);
        POKE(depot->pops, depot->pops + 1);
        if (depot->magazines < depot->low) POKE(depot->low, depot->magazines);
        if (depot->magazines < depot->least) POKE(depot->least, depot->magazines);
        if (depot->magazines < depot->ebb) POKE(depot->ebb, (uint16_t)depot->magazines);
        depot_tell(depot, row);
        MUST((below == 0) == (depot->magazines == 0) && (below == 0) == (depot->blocks == 0), chain.head);
    }
    lock_drop(&depot->lock);
    return chain;
}

static struct depot *depot_own(const struct heap *heap, unsigned class) { return &depots[heap_part(heap)][class]; }

/* Magazines that nobody wanted in this turn of pushes or the last one. */
static uint32_t depot_idle(const struct depot *depot)
{
    return (uint32_t)size_min(PEEK(depot->idle), PEEK(depot->least));
}

/* Blocks in them, if they are as long as the others there: that may be longer than a thread's magazines are by now. */
static uint32_t depot_idle_blocks(const struct depot *depot)
{
    uint32_t magazines = PEEK(depot->magazines);
    return magazines != 0 ? (uint32_t)((uint64_t)depot_idle(depot) * PEEK(depot->blocks) / magazines) : 0;
}

/* Somebody asks for a magazine worth so many; `most` count beyond the pushes. An update that is lost does no harm. */
static void depot_ask(struct depot *depot, int32_t worth, int32_t most)
{
    int32_t given = PEEK(depot->given);
    if (given == DEPOT_LEFT) given = 0;
    int32_t less = given - worth;
    if (given > -most) POKE(depot->given, less > -most ? less : -most);
}

/* Requests of a class that count, in magazines of the usual length. Who builds something and tears it down again asks
 * for all its magazines before giving them; where blocks of two threads would share pairs of lines, those of a larger
 * wave count. */
static int32_t depot_asked(unsigned class)
{
    size_t magazine = magazine_capacity(class) * classes[class].size;
    return classes[class].size < CACHE_PAIR ? (int32_t)size_max(DEPOT_WAVE / magazine, DEPOT_ASKED) : DEPOT_ASKED;
}

/* How many magazines of a part others may take, until they need a new slab (depot_find_few): those that its threads are
 * not likely to come back for, and at least those that lay there at the last two ebbs. These are all where the threads
 * give what others took. To take what a thread would have taken back mixes their blocks for good: neighbours in one
 * line or page then belong to two cores, and each disturbs the other. */
static uint32_t depot_spare(const struct depot *depot, unsigned class)
{
    uint32_t left = (uint32_t)size_min(PEEK(depot->ebb), PEEK(depot->last_ebb));
    int32_t lacking = DEPOT_GIVEN - PEEK(depot->given); /* pushes, until others may take all */
    uint32_t magazines = PEEK(depot->magazines), blocks = PEEK(depot->blocks);
    if (magazines == 0) return 0;
    uint32_t worth = (uint32_t)magazine_worth(class, blocks / magazines);
    uint32_t wanted = lacking > 0 ? (DEPOT_WANTED * (uint32_t)lacking + worth - 1) / worth : 0;
    return (uint32_t)size_max(left, magazines - size_min(wanted, magazines));
}

/* A full magazine: from the thread's own part or else from another, beginning where one was found last; a chain of 0
 * blocks where there is none. */
static struct chain depot_find(struct heap *heap, unsigned class)
{
    struct depot *own = depot_own(heap, class);
    depot_ask(own, magazine_worth(class, heap->capacity[class]), depot_asked(class));
    if (UNLIKELY(PEEK(class_homing[class]))) POKE(class_homing[class], false);
    struct chain full = depot_pop(own, class);
    uint32_t parts = parts_count();
    for (uint32_t seen = 0; full.head == 0 && parts > 1 && seen < parts; seen++) {
        struct depot *other = &depots[heap->helped][class];
        if (depot_spare(other, class) != 0) full = depot_pop(other, class);
        if (full.head == 0) heap->helped = (heap->helped + 1) % parts;
    }
    return full;
}

/* Before a new slab is taken: a full magazine of a part that holds few, even if its owner comes back for them. To mix
 * so few blocks costs less than pages that nobody needs. Those who hold many work in bursts, and would miss them; and
 * to take what a child inherited copies its pages. A chain of 0 blocks where there is none. */
static struct chain depot_find_few(const struct heap *heap, unsigned class)
{
    struct depot *most = depot_own(heap, class);
    if (UNLIKELY(PEEK(depots_inherited) != 0)) return (struct chain){0, 0};
    for (uint32_t part = 0; part < parts_count(); part++) {
        struct depot *other = &depots[part][class];
        uint32_t blocks = PEEK(other->blocks);
        if (blocks > PEEK(most->blocks) && blocks <= DEPOT_FEW * magazine_capacity(class)) most = other;
    }
    return depot_pop(most, class);
}

static struct lock round_lock; /* held while memory goes back: a fork waits, for what is on its way is in no list */
static uintptr_t round_slots[MAGAZINE_MAX];

/* Begins a round: the kernel is asked anew for what it refused. Under round_lock. */
static void round_begin(void)
{
    refusals_left = REFUSALS_MAX;
    refused_set(0);
}

/* Gives so many short runs to the arena. Result: bytes. */
static size_t shorts_return(const uintptr_t *slots, uint32_t runs, uint64_t now)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < runs; i++) {
        struct span *run = span_of(slots[i]);
        bytes += run_touched_bytes(run);
        run_give(run, run_mark(slots[i]), now);
    }
    return bytes;
}

/* Returns the blocks of one magazine to their slabs, or short runs to the arena. Under round_lock. Result: bytes, 0
 * where there is none. */
static size_t depot_send_home(struct depot *depot, unsigned row, uint64_t now)
{
    struct chain chain = depot_pop(depot, row);
    if (chain.head == 0) return 0;
    uintptr_t *rack = chain.head & CHAIN_RACK ? chain_rack(chain)->slots : NULL;
    if (rack == NULL) chain_unpack(row, chain, round_slots);
    const uintptr_t *slots = rack != NULL ? rack + 1 : round_slots;
    size_t bytes =
        row < CLASSES ? slabs_return(row, slots, chain.blocks, now) : shorts_return(slots, chain.blocks, now);
    if (rack != NULL) rack_give(rack);
    return bytes;
}

/* Sends home the magazines that nobody asked for since the last trim, or `all`. Under round_lock. Result: bytes. */
static size_t depot_trim(struct depot *depot, unsigned row, uint64_t now, bool all)
{
    size_t bytes = 0;
    uint32_t idle = all ? UINT32_MAX : PEEK(depot->low);
    for (; idle > 0; idle--) {
        size_t home = depot_send_home(depot, row, now);
        if (home == 0) break;
        bytes += home;
    }
    lock_take(&depot->lock);
    POKE(depot->low, depot->magazines);
    lock_drop(&depot->lock);
    return bytes;
}

/* The sums over a depot's parts. */
struct depot_counts {
    uint64_t magazines, blocks, pushes, pops, contended;
};

static struct depot_counts depot_read(unsigned row)
{
    struct depot_counts sum = {0};
    for (unsigned part = 0; part < parts_count(); part++) {
        struct depot *depot = &depots[part][row];
        sum.magazines += PEEK(depot->magazines);
        sum.blocks += PEEK(depot->blocks);
        sum.pushes += PEEK(depot->pushes);
        sum.pops += PEEK(depot->pops);
        sum.contended += atomic_load_explicit(&depot->contended, memory_order_relaxed);
    }
    return sum;
}

static size_t depots_bytes(void)
{
    size_t bytes = 0;
    for (unsigned row = 1; row < ROWS; row++) bytes += depot_read(row).blocks * row_size(row);
    return bytes;
}

static bool depots_hold(size_t much) { return atomic_load_explicit(&depots_told, memory_order_relaxed) >= much; }

/* Of `bytes` in depots, those that go home when they lie idle: not the inherited ones. */
static size_t depots_own(size_t bytes) { return bytes - size_min(bytes, PEEK(depots_inherited)); }

static pid_t inherited_from;

static void depots_child(void)
{
    POKE(depots_inherited, size_max(depots_bytes(), atomic_load(&depots_told))); /* what is told is not exact */
    inherited_from = getppid();
}

/* Do a child's depots still share pages with its parent? To send a block home is to write to it, which copies its page
 * if the parent has it too. A child that works a little does not do that to all that its parent had freed; but once the
 * parent has gone, or as much again was freed as makes a round, it is the child's. Under round_lock. */
static bool depots_are_shared(void)
{
    size_t inherited = PEEK(depots_inherited);
    if (LIKELY(inherited == 0)) return false;
    if (getppid() == inherited_from && !depots_hold(inherited + (size_t)knob(KNOB_purge_batch_bytes))) return true;
    POKE(depots_inherited, 0);
    return false;
}

static size_t depots_trim(uint64_t now, bool all)
{
    size_t bytes = 0;
    if (!all && depots_are_shared()) return 0;
    for (unsigned row = 1; row < ROWS; row++)
        for (unsigned part = 0; part < parts_count(); part++)
            if (PEEK(depots[part][row].top) != 0) bytes += depot_trim(&depots[part][row], row, now, all);
    racks_trim();
    return bytes;
}

/* Before memory grows: what lies idle in depots goes home, for its slabs may serve, or whole superslabs as runs; and
 * `bytes` of superslabs' free units go to the kernel, if it takes any. False: nothing is done, for a round is under
 * way. */
static COLD bool depots_relieve(size_t bytes)
{
    if (!lock_try(&round_lock)) return false;
    uint64_t now = os_now_ns();
    if (depots_trim(now, false) != 0) POKE(slabs_due, true);
    if (bytes != 0 && refusals_left > 0 && atomic_load(&refused_units) == 0) superslab_purge(now, bytes);
    lock_drop(&round_lock);
    return true;
}

/* Before blocks come from slabs; for each number of superslabs once while they have free units and once when they have
 * none: relieves depots that hold much, or whose few blocks may hold back many slabs. */
static void depots_relieve_slabs(void)
{
    static size_t relieved;
    size_t bytes = atomic_load_explicit(&superslab_bytes, memory_order_relaxed);
    size_t has = bytes | (PEEK(superslabs_free) == NULL);
    size_t returned = atomic_load_explicit(&returned_bytes, memory_order_relaxed);
    if (UNLIKELY(PEEK(relieved) != has) &&
        (depots_hold(size_max(bytes / 16, SUPERSLAB_SMALL)) || returned > size_max(bytes / 4, SUPERSLAB_SMALL)) &&
        depots_relieve(0))
        POKE(relieved, has);
}

static size_t runs_relieved; /* units of runs out at the last relief for their sake, or the last round of tidying */

/* Before memory for runs grows, with `units` of them out: each time they are more by a sixteenth than the last time.
 * Free units between slabs in use serve no run: where long blocks take the place of short ones, their pages go. */
static void depots_relieve_runs(size_t units)
{
    size_t had = PEEK(runs_relieved), much = size_max(had / 16, SUPERSLAB_SMALL / UNIT_BYTES);
    bool idle = atomic_load_explicit(&slab_dirty_units, memory_order_relaxed) >= much && knob(KNOB_idle_return);
    if (units > had + much && (idle || depots_hold(much << UNIT_SHIFT)) &&
        depots_relieve(idle ? much << UNIT_SHIFT : 0))
        POKE(runs_relieved, units);
}
