/* sizeclass.c: from a size to its class, for tiny blocks (one class a granule) and L2 (by a table, without a branch);
 * and from a run's length in units to its bin.
 *
 * Class numbers: 1 ... 64 are tiny, 65 ... 104 are L2; rows 106 ... 113 are those of short runs. Sixteen times the
 * number is the offset of the bin and, for a tiny class, its size. A class's blocks start at the slab's first byte and
 * lie `size` apart, so an offset is a block's start where `offset mod size == 0`. That is tested without a division:
 * with m = ceil(2^64 / size), it holds exactly when offset * m mod 2^64 < m, as long as offset * size < 2^64 (Lemire,
 * Kaser, Kurz 2019, section 3.2).
 *
 * Within a slab 32 bits are enough, with a larger m. Then block k has the product k * e, where e = m * size - 2^32, and
 * the product of every offset that is no block's start is at least m. So one comparison with a bound that lies above
 * (carved - 1) * e, and not above carved * e, also tells carved blocks from uncarved ones. As e is above BOUND_ROW,
 * there is such a bound with any wanted lowest byte; and as e times the number of blocks is below m, so is every
 * bound. */

static struct size_class classes[CLASSES];
static struct owners owners;                           /* slab.c and mid.c write the bound of each unit */
static uint16_t big_bins[RUN_SHORT_MAX / L2_STEP + 1]; /* size / 128, rounded up -> offset of the bin */

static ALWAYS_INLINE size_t tiny_round(size_t size)
{
#ifdef HAK_TINY_PUBLISHED8
    return (size_t)2 << log2_floor((size - 1) | (GRANULE - 1)); /* 0 for 0, as below */
#else
    return (size + GRANULE - 1) & ~(size_t)(GRANULE - 1); /* 0 for 0: the empty class */
#endif
}

/* The offset of the bin for a size above TINY_MAX, up to RUN_SHORT_MAX. */
static ALWAYS_INLINE size_t big_bin(size_t size) { return big_bins[(size + L2_STEP - 1) / L2_STEP]; }

static ALWAYS_INLINE unsigned small_class(size_t size) /* size in 1 ... L2_MAX */
{
    return (unsigned)((size <= TINY_MAX ? tiny_round(size) : big_bin(size)) / sizeof(struct bin));
}

/* The e of the text above: how far the products of neighbouring blocks are apart. */
static uint32_t class_apart(unsigned class) { return owners.layout[class].start * classes[class].size; }

static void class_define(unsigned class, size_t size, size_t slab_bytes)
{
    classes[class].size = (uint32_t)size;
    classes[class].start = UINT64_MAX / size + 1;
    classes[class].slab_units = (uint32_t)(slab_bytes / UNIT_BYTES);
    classes[class].slab_blocks = (uint32_t)(slab_bytes / size);
    owners.layout[class].within = (uint32_t)slab_bytes - 1;
    owners.layout[class].start = (uint32_t)(((UINT64_C(1) << 32) + BOUND_ROW) / size + 1);
    MUST((uint64_t)classes[class].slab_blocks * class_apart(class) < owners.layout[class].start, size);
}

/* --- short runs --------------------------------------------------------------------------------------------------- */

/* Units that a block of this size needs, its colour included. One whose colour takes it beyond RUN_COLOURED has that
 * unit, but no colour: shorter runs have one. */
static ALWAYS_INLINE size_t run_units(size_t size)
{
    return (size + (size <= RUN_COLOURED * UNIT_BYTES ? RUN_SLACK : 0) + UNIT_BYTES - 1) >> UNIT_SHIFT;
}

/* The length of the run that serves so many units. There are no runs of 5 or 7 units: with fewer lengths, one of the
 * right length is in hand more often, and a call that finds none takes a branch that no core foretells. What a longer
 * run has to spare is never touched. */
static ALWAYS_INLINE size_t run_length(size_t units)
{
    return units < RUN_SHORT && units > RUN_SHORT / 2 ? align_up(units, 2) : units;
}

/* Bytes of the longest block that a short run of this length serves. */
static ALWAYS_INLINE size_t short_size(size_t length)
{
    return length * UNIT_BYTES - (length <= RUN_COLOURED ? RUN_SLACK : 0);
}

/* Bytes of the blocks that a row of bins holds; means nothing for rows that hold none. */
static ALWAYS_INLINE size_t row_size(unsigned row)
{
    return row < CLASSES ? classes[row].size : short_size(row - CLASSES);
}

static uint16_t run_starts[RUN_COLOURS]; /* by the number of a run's first unit */

/* Blocks that all began on a unit would share a few sets of every cache, so each run has a colour: the cache line of
 * its first page on which the block begins (Bonwick, USENIX 1994, section 4.2). A block of many pages that is used as a
 * whole reaches all sets anyway, and with a colour would need another unit, or huge page: so longer ones have none. */
static ALWAYS_INLINE uint32_t run_colour(const struct span *run)
{
    return run->units <= RUN_COLOURED ? run_starts[(run->address >> UNIT_SHIFT) % RUN_COLOURS] : 0;
}

/* The colour follows from the number of the unit, so that a free tells the block's start by one product, as in a slab.
 * Among the products of a unit's addresses, modulo RUN_COLOURS units, with RUN_FACTOR the least is that of the first
 * byte of a cache line in the first page, and no other one is less than 512 above it. Neighbouring units have lines far
 * apart. Few factors are like that; these were found by trying (tests/native/bounds.c looks at every address). */
static void shorts_define(unsigned at)
{
    for (uint32_t unit = 0; unit < RUN_COLOURS; unit++) {
        uint32_t best = UINT32_MAX, first = (unit << UNIT_SHIFT) * RUN_FACTOR;
        for (uint32_t start = 0; start < RUN_SLACK; start += CACHE_LINE) {
            if (first + start * RUN_FACTOR >= best) continue;
            best = first + start * RUN_FACTOR;
            run_starts[unit] = (uint16_t)start;
        }
    }
    for (size_t length = 1; length <= RUN_SHORT; length++) {
        bool staggered = length <= RUN_COLOURED;
        owners.layout[CLASSES + length].within = (uint32_t)(staggered ? RUN_COLOURS * UNIT_BYTES : UNIT_BYTES) - 1;
        owners.layout[CLASSES + length].start = staggered ? RUN_FACTOR : (uint32_t)1 << (32 - UNIT_SHIFT);
        for (; at < COUNT(big_bins) && run_length(run_units(at * L2_STEP)) <= length; at++)
            big_bins[at] = (uint16_t)((CLASSES + length) * sizeof(struct bin));
    }
}

static void classes_init(void)
{
    for (unsigned c = 1; c < TINY_CLASSES; c++) class_define(c, c * GRANULE, UNIT_BYTES);
    size_t step = TINY_MAX / L2_STEPS, size = TINY_MAX;
    unsigned at = 0;
    for (unsigned c = TINY_CLASSES; c < CLASSES; c++) {
        size += step;
        class_define(c, size, align_up(size <= L2_SMALL_MAX ? L2_SMALL_SLAB_BYTES : L2_SLAB_BYTES, UNIT_BYTES));
        for (; at <= size / L2_STEP; at++) big_bins[at] = (uint16_t)(c * sizeof(struct bin));
        if (is_power_of_two(size)) step *= 2;
    }
    shorts_define(at);
}

/* The bound for a row above the last product of a block's start. Its lowest byte is twice the row. */
static uint32_t bound_above(uint32_t last, unsigned row)
{
    uint32_t bound = (last & ~BOUND_ROW) | 2 * row;
    return bound > last ? bound : bound + BOUND_ROW + 1;
}

/* The bound for the units of a slab of the class of which so many blocks are carved, at least one. */
static uint32_t class_bound(unsigned class, uint32_t carved)
{
    return bound_above((carved - 1) * class_apart(class), class);
}

/* The bound for the first unit of a short run of this length whose block starts there. */
static uint32_t short_bound(size_t length, uintptr_t block)
{
    const struct layout *layout = &owners.layout[CLASSES + length];
    return bound_above(((uint32_t)block & layout->within) * layout->start, CLASSES + (unsigned)length);
}

/* Does a block of the class start at this offset of its slab? If so, `index` says which. */
static ALWAYS_INLINE bool class_is_start(unsigned class, size_t offset, size_t *index)
{
    uint64_t start = classes[class].start;
    __extension__ unsigned __int128 product = (unsigned __int128)offset * start;
    *index = (size_t)(product >> 64);
    return (uint64_t)product < start;
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

/* The bin of a run of this many units. All runs too long for the others are in the last one. */
static ALWAYS_INLINE unsigned run_bin_floor(size_t units)
{
    if (units <= RUN_EXACT) return (unsigned)units - 1;
    unsigned doubling = log2_floor(units) - 4; /* 0: 16 ... 31 */
    unsigned bin = RUN_EXACT - 1 + doubling * RUN_STEPS + (unsigned)((units >> (doubling + 1)) & (RUN_STEPS - 1));
    return bin < RUN_BINS ? bin : RUN_BINS - 1;
}

/* The least length of a run in the bin: run_bin_units(run_bin_floor(n)) <= n. */
static ALWAYS_INLINE size_t run_bin_units(unsigned bin)
{
    if (bin < RUN_EXACT) return bin + 1;
    unsigned above = bin - (RUN_EXACT - 1);
    return (size_t)(RUN_STEPS + above % RUN_STEPS) << (above / RUN_STEPS + 1);
}

/* First bin all of whose runs have at least this many units. */
static ALWAYS_INLINE unsigned run_bin_ceil(size_t units)
{
    unsigned bin = run_bin_floor(units);
    return bin + (run_bin_units(bin) < units);
}
