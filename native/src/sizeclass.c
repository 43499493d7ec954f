/* sizeclass.c: from a size to its class, for tiny blocks (one class a granule) and L2 (by a table, without a branch);
 * and from a run's length in units to its bin.
 *
 * Class numbers: 1 ... 64 are tiny, 65 ... 104 are L2. Sixteen times the number is the offset of the class's bin and,
 * for a tiny class, its size. A class's blocks start at the slab's first byte and lie `size` apart, so an offset is a
 * block's start where `offset mod size == 0`. That is tested without a division: with m = ceil(2^64 / size), it holds
 * exactly when offset * m mod 2^64 < m, as long as offset * size < 2^64 (Lemire, Kaser, Kurz 2019, section 3.2).
 *
 * Within a slab 32 bits are enough, with a larger m. Then block k has the product k * e, where e = m * size - 2^32, and
 * the product of every offset that is no block's start is at least m. So one comparison with a bound that lies above
 * (carved - 1) * e, and not above carved * e, also tells carved blocks from uncarved ones. As e is above BOUND_ROW,
 * there is such a bound with any wanted lowest byte; and as e times the number of blocks is below m, so is every
 * bound. */

static struct size_class classes[CLASSES];
static struct owners owners;                   /* slab.c writes the bound of each unit */
static uint16_t l2_bins[L2_MAX / L2_STEP + 1]; /* size / 128, rounded up -> offset of the bin */

static ALWAYS_INLINE size_t tiny_round(size_t size)
{
#ifdef HAK_TINY_PUBLISHED8
    return (size_t)2 << log2_floor((size - 1) | (GRANULE - 1)); /* 0 for a size without a class, as below */
#else
    return (size + GRANULE - 1) & ~(size_t)(GRANULE - 1); /* wraps to 0 for absurd sizes: the empty class */
#endif
}

static ALWAYS_INLINE size_t l2_bin(size_t size) { return l2_bins[(size + L2_STEP - 1) / L2_STEP]; }

static ALWAYS_INLINE unsigned small_class(size_t size) /* size in 1 ... L2_MAX */
{
    return (unsigned)((size <= TINY_MAX ? tiny_round(size) : l2_bin(size)) / sizeof(struct bin));
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

static void classes_init(void)
{
    for (unsigned c = 1; c < TINY_CLASSES; c++) class_define(c, c * GRANULE, UNIT_BYTES);
    size_t step = TINY_MAX / L2_STEPS, size = TINY_MAX;
    unsigned at = 0;
    for (unsigned c = TINY_CLASSES; c < CLASSES; c++) {
        size += step;
        class_define(c, size, align_up(size <= L2_SMALL_MAX ? L2_SMALL_SLAB_BYTES : L2_SLAB_BYTES, UNIT_BYTES));
        for (; at <= size / L2_STEP; at++) l2_bins[at] = (uint16_t)(c * sizeof(struct bin));
        if (is_power_of_two(size)) step *= 2;
    }
}

/* The bound for the units of a slab of the class of which so many blocks are carved, at least one. Its lowest byte is
 * twice the class. */
static uint32_t class_bound(unsigned class, uint32_t carved)
{
    uint32_t last = (carved - 1) * class_apart(class), bound = (last & ~BOUND_ROW) | 2 * class;
    return bound > last ? bound : bound + BOUND_ROW + 1;
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
