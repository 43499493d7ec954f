/* types.h: every constant and every struct of the allocator; no functions.
 *
 * The nouns, from small to large:
 *   block      what malloc hands out
 *   magazine   a bounded stack of free blocks' addresses, of one class, private to a thread; two per class: loaded
 *              and spare
 *   depot      full magazines of one class, or of short runs of one length, shared by all threads
 *   slab       a unit (or a few) of address space cut into equal blocks
 *   superslab  1 or 2 MiB from which slabs are taken
 *   run        adjacent units that serve one block above 32 KiB
 *   arena      a range of addresses, cut into units; every unit has a descriptor outside it
 *
 * Accounting, true whenever no lock is held and no thread is inside a call:
 *   slab:   carved = handed out to callers + in magazines + in the depot + returned
 *   arena:  units  = slabs + free units of superslabs + runs + free spans + unborn (beyond the frontier) */
#ifndef HAK_TYPES_H
#define HAK_TYPES_H

#include "base.h"

/* --- units and classes: sizes derive from the shifts -------------------------------------------------------------- */

#define UNIT_SHIFT HAK_SLAB_SHIFT            /* 16; the variant slab16 is built with 14 */
#define UNIT_BYTES ((size_t)1 << UNIT_SHIFT) /* 64 KiB: a slab, and the step of runs */
#define MAP_BITS 22                          /* log2 of the units that can be told apart */
#define MAP_MASK (((size_t)1 << MAP_BITS) - 1)
#define WINDOW_BYTES (UNIT_BYTES << MAP_BITS) /* 256 GiB: heap addresses are unique modulo this */

#define GRANULE 16u                              /* bytes; alignment of every block */
#define TINY_MAX 1024u                           /* bytes; one class per granule */
#define TINY_CLASSES (TINY_MAX / GRANULE + 1)    /* 65: class c holds blocks of 16 c bytes, class 0 is empty */
#define L2_MAX 32768u                            /* bytes */
#define L2_STEPS 8u                              /* classes per doubling: 12.5 % worst internal waste */
#define L2_CLASSES (5u * L2_STEPS)               /* 40: five doublings from 1 KiB */
#define CLASSES (TINY_CLASSES + L2_CLASSES)      /* 105 */
#define L2_STEP 128u                             /* bytes: the finest step of an L2 class */
#define L2_SMALL_MAX 8192u                       /* bytes; for blocks up to here ... */
#define L2_SMALL_SLAB_BYTES ((size_t)65536)      /* ... a slab is 64 KiB */
#define L2_SLAB_BYTES ((size_t)131072)           /* 128 KiB for longer ones: an offset times L2_MAX fits 32 bits */
#define CARVE_AHEAD 4u                           /* blocks, or lines if longer, to fetch ahead of a fresh one */
#define SLAB_QUIET 2u                            /* rounds of tidying until the parts of a quiet slab are looked at */
#define SLAB_STRIPPED (SLAB_QUIET + 1)           /* in place of that number: they were */
#define SLABS_INLINE 64u                         /* most slabs that a thread strips when it tidies inline */
#define SLAB_PARTS 16u                           /* parts of a slab, each a page at least: pages go back by parts */
#define WIDE_CLASS (TINY_CLASSES + 3 * L2_STEPS) /* 89: the first class above L2_SMALL_MAX */

#define SUPERSLAB_SMALL ((size_t)1 << 20)                  /* 1 MiB */
#define SUPERSLAB_LARGE ((size_t)2 << 20)                  /* 2 MiB: what one huge page covers */
#define SUPERSLAB_UNITS_MAX (SUPERSLAB_LARGE / UNIT_BYTES) /* 32, or 128 with 16 KiB units */

#define RUN_EXACT 16u                                                     /* runs up to 16 units: a bin per length */
#define RUN_STEPS 8u                                                      /* then 8 bins per doubling */
#define RUN_BINS 64u                                                      /* up to 64 x 16 units = 64 MiB */
#define RUN_UNITS_MAX (RUN_EXACT << ((RUN_BINS - RUN_EXACT) / RUN_STEPS)) /* 1024 */
#define AGE_MOST 8u                          /* a free span so many times as long as what joins it keeps its age */
#define RUN_SHORT 8u                         /* units; up to here a thread has a few runs in hand, without accounts */
#define RUN_SHORT_BYTES ((size_t)1536 << 10) /* of each short length that it has in hand, at most */
#define HAND_TOLD ((size_t)256 << 10)        /* bytes that a thread may free by hits before the helper looks at it */
#define HANDS_LOOKED 512u                    /* threads in a round that are looked at for whether they rest */
#define SHORTS_KEPT_MANY 8u  /* times in a row that short runs left the hand for its lists, until its limits fall */
#define SHORTS_BURSTS_MAX 5u /* doublings of that */
#define SHORTS_PASSED 16u    /* magazines of short runs of a length that wait for others */
#define RUN_SHORT_MOST (RUN_SHORT_BYTES / UNIT_BYTES) /* 24 runs of one unit */
#define ROWS (CLASSES + RUN_SHORT + 1)                /* of bins: by class, then short runs by units */
/* What a thread keeps besides (mid_allow): at most RUN_TIMES the bytes that its callers have, and RUN_MORE times what
 * it may always keep. Where an idle thread's runs are collected, all that it had, up to RUN_WATCHED times the
 * latter. */
#define RUN_TIMES 3u
#define RUN_MORE 8u
#define RUN_WATCHED 64u
#define RUN_WORTH ((size_t)4 << 20)     /* bytes of kept runs beyond those left last time that are worth collecting */
#define RUN_PORTION ((size_t)256 << 10) /* portion in which what it keeps is told, or a quarter of what it may keep */
#define RUN_MUCH ((size_t)512 << 10)    /* bytes; if it keeps so many, it gives up all before memory grows */
#define RUN_GIVEN_MANY 16u              /* runs given to the arena in a row, until fewer short ones are kept */
/* A thread that soon takes again what it gave in a row works in bursts, and may keep more (heap_regret): by so many
 * doublings at most. */
#define BURSTS_MAX 5u   /* of a magazine's bytes, for the class that it gave */
#define TRADES_MANY 16u /* exchanges of less, taken again each time, that count as one burst */
#define TURNS_MANY 16u  /* so do as many turns of its two magazines in a row, ... */
#define TURNS_BURSTS 3u /* ... but they double its bytes so many times only */
#define PEAKS_MAX 2u    /* of the runs that it may keep, if it gave much, and of GIVEN_MUCH (heap_much) */
#define HUGE_EARLY 8    /* from this part of huge_after_bytes on, new superslabs get huge pages ... */
#define HUGE_IDLE 20    /* ... while no more than such a part of all blocks is free */
#define HUGE_FIRST 4    /* from this part of huge_after_bytes on, full superslabs get huge pages */
#define HUGE_SOON 2     /* from this part of huge_after_bytes on, superslabs that are half taken get huge pages ... */
#define HUGE_HALF 12    /* ... if so many sixteenths of that half were touched */
#define HUGE_LOOKS 8    /* most that get them unlooked at, after as many in a row that were so */
#define LARGE_FEW 2u    /* large blocks filled in a row, until some of such a size get huge pages ... */
#define LARGE_SURE 6u   /* ... and until only one of 32 live ones goes without */
#define LARGE_SPARSE UINT8_MAX          /* in place of that number: the last one that told was not filled */
#define LARGE_LONG ((size_t)4 << 20)    /* bytes; for each of these a block counts once more, up to LARGE_FEW */
#define LARGE_TRUST ((size_t)256 << 20) /* bytes of blocks with huge pages, or two blocks, until one goes without */
#define LARGE_PROBED ((size_t)16 << 20) /* bytes; from here on only a part of that one goes without: the probe, ... */
#define LARGE_PROBE SUPERSLAB_LARGE     /* ... so many bytes, one huge page */
#define RUN_ROUND 1024u           /* runs that left the hand, or were longer, until what lay idle meanwhile goes back */
#define RUN_ENDED (2 * RUN_ROUND) /* in place of that number: tidying ends the round */
#define RUN_COLOURS 64u           /* cache lines over which runs' blocks are staggered: a page */
#define RUN_SLACK (RUN_COLOURS * CACHE_LINE)                      /* bytes that a run must have to spare for that */
#define RUN_FACTOR (UNIT_SHIFT == 16 ? 0x009714fcu : 0xfafbefc0u) /* by which they are told (shorts_define) */
#define RUN_COLOURED (((size_t)192 << 10) / UNIT_BYTES) /* units of the longest run whose block is staggered */
/* Bytes of the longest block that a short run serves. */
#define RUN_SHORT_MAX (RUN_SHORT * UNIT_BYTES - (RUN_SHORT <= RUN_COLOURED ? RUN_SLACK : 0))
#define LARGE_MIN ((size_t)1 << 20)                    /* 1 MiB: blocks from here on are large */
#define LARGE_THRESHOLD_MAX ((size_t)32 << 20)         /* bytes: the knob's maximum */
#define GIANT_UNITS (LARGE_THRESHOLD_MAX / UNIT_BYTES) /* blocks from here on keep pages if they come again soon */
#define GIANT_KEEP 2u /* for so many units of runs out one may stay idle where no free memory serves a giant */
#define SIZE_LIMIT (WINDOW_BYTES / 2)        /* larger requests are refused; units below it fit 32 bits */
#define GROWTH_UNITS RUN_UNITS_MAX           /* address space given to a block that grows: 64 MiB ... */
#define GROWTH_UNITS_MAX (64 * GROWTH_UNITS) /* ... and 4 GiB to one that has outgrown that */
#define GROWN_SMALL ((size_t)16 << 10)  /* bytes; a block that grows to no more is copied, unless most grow longer, */
#define GROWN_LEAST ((size_t)2 << 10)   /* ... and one that grows to no more than this always */
#define GROWN_MUCH ((size_t)256 << 10)  /* bytes that a thread copies for longer ones, until one gets a new window */
#define WINDOWS_FEW 8u                  /* windows; with more, none is made for a small block */
#define WINDOW_SPARE (GROWTH_UNITS / 2) /* units; if more lie beyond the block they go, however long it is */
#define WINDOW_HUGE ((size_t)8 << 20)   /* bytes from which on such a block may get huge pages */

/* When slabs have taken so many units for each thread, and this part of all superslabs, a thread looks at what it has
 * of each class. What it has not used since the last look goes home if this part of those units had no pages
 * (heap_shed). */
#define SHED_UNITS (((size_t)1 << 20) / UNIT_BYTES)
#define SHED_SHARE 32u
#define SHED_COLD 4u

#define SPARSE_LEAST ((size_t)128 << 10) /* a class is sparse if so many bytes of its blocks are free ... */
#define SPARSE_SHARE 8u                  /* ... and they are this part of its slabs; later half of either will do */
/* While freed blocks of a class are kept apart from those taken (magazine_judge): */
#define APART_LOOK 16u  /* frees from one look to the next */
#define APART_TAKEN 8u  /* for so many frees at least one block must have been taken */
#define APART_TIMES 8u  /* when so many times the blocks of the slabs were freed ... */
#define APART_WORTH 16u /* ... at least one of so many slabs must have become whole */
#define APART_WAIT 16u  /* magazines given, at least, until it is tried again */
#define APART_VAIN 64u  /* if in vain: so many times those that the slabs' blocks fill; APART_TIMES if all is dense */

#define BOUND_ROW 255u   /* lowest byte of a unit's bound: twice the row; products lie further apart (sizeclass.c) */
#define MAGAZINE_MIN 16u /* blocks; the arms of ACE are 16, 32, ... 512 */
#define THREADS_MANY 16u /* a core: with twice as many, magazines of long blocks may hold half of MAGAZINE_MIN */
#define MAGAZINE_MAX 512u
#define POLICY_LAST 20                  /* row of the policy table (ace/policy.c) */
#define POLICY_DEFAULT 20               /* ucb-near */
#define QUARANTINE_MAX 4096             /* most freed blocks that hardened holds back */
#define BURST_BLOCKS 128u               /* up to so many blocks, or so many bytes, bursts make a magazine longer: ... */
#define BURST_BYTES ((size_t)512 << 10) /* ... an exchange costs each block little then, or holds much */
#define GIVEN_MANY 4u                   /* units, or shorter magazines, given in a row: the next ones are smaller */
#define GIVEN_ALL (GIVEN_MANY + 1)      /* in place of that number: much of all classes was given; then still smaller */
#define NEAR_MANY 8u                    /* requests that longer blocks may serve, until one gets a block of its own */
#define GIVEN_MUCH ((size_t)2 << 20)    /* bytes of all classes given in a row that are much (heap_much) */
#define HOMES_LEAST ((size_t)3 << 19)   /* bytes given in a row, about a core's second cache, from which order counts */
#define HOMES_MAX 1536u /* bytes; longer blocks never go home for that: few lie in a page, and slabs hold few */
#define RACK_TINY_LEAST (MAGAZINE_MAX / 4) /* a magazine for more blocks has a rack, ... */
#define RACK_L2_LEAST (MAGAZINE_MAX / 8)   /* ... which is little memory beside long ones; shorter ones have slots */
#define SLOTS_GAP (CACHE_LINE / sizeof(uintptr_t)) /* or those of a size would begin in few sets of the first cache */
#define SLOTS_SHORT(least) (2 * (2 * (least) + 4 * (1 + SLOTS_GAP))) /* two of each length from MAGAZINE_MIN on */
#define SLOTS_COUNT (TINY_CLASSES * SLOTS_SHORT(RACK_TINY_LEAST) + L2_CLASSES * SLOTS_SHORT(RACK_L2_LEAST))
#define EARLY_FREES 64u                  /* of a thread without a heap: more than libc makes after its last hook */
#define HEAP_FRONTS 1024u                /* rows of the table that finds a heap by its front */
#define SLABS_USED ((size_t)1 << 20)     /* a part whose threads took or gave so many bytes of slabs is in use ... */
#define SLABS_IDLE_NS UINT64_C(20000000) /* ... for so long: others leave its list alone */
#define PARTS 8u                         /* into which what threads share is divided: depots, lists of slabs */
#define DEPOT_FEW 4u                     /* a part with no more usual magazines serves others that need a slab */
#define DEPOT_TURN 16u                   /* pushes from one look at what lies idle to the next */
#define DEPOT_ASKED 16                   /* most requests that count beyond the pushes of a part's threads, ... */
#define DEPOT_WAVE ((size_t)2 << 20)     /* ... or those for so many bytes of small blocks, if that is more */
#define DEPOT_GIVEN 4                    /* most pushes that count beyond their requests: others may take all */
#define DEPOT_WANTED 3u                  /* magazines that wait for them, for each push that lacks to that */
#define DEPOT_LEFT (DEPOT_GIVEN + 1)     /* in place of the difference: the last one that asked has left */
#define ARENA_BYTES (WINDOW_BYTES / 4)   /* 64 GiB: an arena's range, where the address space is not limited */
#define ARENA_BYTES_MIN ((size_t)4 << 20)
#define ARENAS_MAX 64u
/* Base of an arena that is none. No address lies within reach of it, NULL neither: a thread may free that while another
 * one makes the first arena, and see the length before the base. */
#define ARENA_NOWHERE ((uintptr_t)1 << 63)
#define FATAL_WAIT_S 10u               /* a thread that finds damage while another one dies waits so long for the end */
#define ARENA_FAR 16u                  /* part of the address space left between an arena and what the kernel maps */
#define REFUSALS_MAX 64                /* refusals by the kernel to take pages, in a round: then all memory is locked */
#define ROUNDS_VAIN_MAX 16u            /* doublings of the time until the kernel is asked again ... */
#define AGAIN_NS UINT64_C(64000000000) /* ... up to here */
#define RECYCLED_MIN ((size_t)64 << 20)  /* bytes the arena hands out again before regions are looked at ... */
#define RECYCLED_TIMES 6                 /* ... and so many times what it has ever used */
#define REGION_WAIT 1024                 /* runs taken from then on until the first region is moved */
#define REGION_DENSE 15                  /* sixteenths of its pages that are resident before it is moved */
#define REGION_REFUSALS 4u               /* failures in a row after which none is moved any more */
#define GROWTH_LOOKS 16u                 /* regions looked at each time that a superslab is half taken */
#define REGION_LOOKS 5                   /* rounds over regions of which some were not full */
#define REGION_WORTH ((size_t)8 << 20)   /* bytes of a thread's runs: more pages than a core has at hand */
#define FRONTIER_STEP ((size_t)64 << 20) /* an arena becomes writable in steps of this */
#define TABLES_STEP (4 * FRONTIER_STEP)  /* and gets descriptors in steps of this */

#define POINTER_BITS 48                               /* of a user address */
#define LINK_LEAST (UINT64_C(0x7FFE) << POINTER_BITS) /* least key that links are stored under; greatest: 2^47 more */
#define CHAIN_LEAST                                                                                                    \
    (LINK_LEAST & ~(((uintptr_t)2 * MAGAZINE_MAX - 1) << POINTER_BITS)) /* least first word of a depot's magazine */
#define SLOTS_LONGEST ((MAGAZINE_MAX + 1) * sizeof(uintptr_t)) /* bytes from a magazine's slots to its highest top */

_Static_assert(UNIT_SHIFT == 16 || UNIT_SHIFT == 14, "RUN_FACTOR is known for these");
_Static_assert(RUN_SLACK % L2_STEP == 0, "the longest blocks of short runs are steps of malloc's table");
_Static_assert(TINY_CLASSES == 65, "code inlined from the header knows one class every 16 bytes up to 1 KiB");
_Static_assert(L2_SLAB_BYTES / L2_SMALL_MAX <= 64 && UNIT_BYTES / TINY_MAX <= 64,
               "an L2 slab keeps its free slots in one 64-bit word");
_Static_assert(RUN_UNITS_MAX <= (WINDOW_BYTES >> UNIT_SHIFT) / 64, "runs are small beside the window");

/* --- locks -------------------------------------------------------------------------------------------------------- */

struct lock {
    _Atomic uint32_t state; /* 0 free, 1 held, 2 held and somebody sleeps on it */
};

/* --- the thread's front: what malloc and free touch on a hit ------------------------------------------------------ */

/* Addresses of free blocks as the fast path sees them: a loaded magazine, or the short runs of one length that a thread
 * has in hand. What slot 0 holds is no block: it says that none is left. */
struct bin {
    uintptr_t *top;         /* slot above the uppermost block's */
    const uintptr_t *limit; /* slot that is not to be filled */
};

/* A magazine's slots, and how many blocks are in them; of a loaded magazine the bin says that. Slot 0 holds the address
 * of empty_block. */
struct magazine {
    uintptr_t *slots; /* NULL: none yet */
    uint32_t room;    /* blocks that the slots can hold; MAGAZINE_MAX: they are a rack's */
    uint32_t blocks;
};

/* Strands, the lists that a packed magazine consists of: a core may wait for as many misses at a time. */
#define STRANDS_A_WORD 16u  /* for each word of a block but the first ... */
#define STRANDS_ENOUGH 128u /* ... up to here, where lines come from another core */

/* Racks, the slots of long magazines (rack.c). */
#define RACKS_LEAST ((size_t)1 << 20) /* bytes of racks up to which magazines go to the depot in them ... */
#define RACKS_SHARE 16                /* ... or this part of the bytes in superslabs */
#define RACKS_A_BOX 15u
#define BOXES_AT_ONCE 16u /* boxes of the first mapping: 1 MiB */
#define RACK_MAPPINGS 16u /* each twice as long as the one before */

#define MARKS_WORDS (UNIT_BYTES / GRANULE / 64) /* one bit per block of the shortest class */
#define MARKS_AT_ONCE 2048u                     /* rows, for 128 MiB of slabs */

struct rack {
    uintptr_t seal; /* in the depot: as a first block's word (chain.c); in a heap: 0; free: the next one */
    struct rack_box *box;
    uintptr_t slots[MAGAZINE_MAX + 1];
    uintptr_t apart[5]; /* else all racks would begin in the same few sets of the first cache */
};

struct rack_box {
    struct rack_box *next;
    uint32_t free;        /* racks that nobody has */
    uint32_t carved;      /* racks that somebody had since it was opened */
    uintptr_t apart[390]; /* makes the box 64 KiB long */
    struct rack racks[RACKS_A_BOX];
};

/* A whole magazine in the depot: a rack, or its own blocks (chain.c). */
struct chain {
    uintptr_t head; /* the first block's address, or a rack's plus CHAIN_RACK; 0: none */
    uint32_t blocks;
};

#define CHAIN_RACK ((uintptr_t)1)

/* --- slabs, runs, free spans: one descriptor per unit, outside the memory it describes ---------------------------- */

/* A span's first descriptor says what the span is. Its others are SPAN_SLAB_INSIDE in a slab, where each knows the way
 * back, and SPAN_INSIDE elsewhere, where only the last one does. */
enum span_kind { SPAN_INSIDE, SPAN_FREE, SPAN_SLAB, SPAN_SLAB_INSIDE, SPAN_RUN, SPAN_SUPERSLAB };
enum slab_place { SLAB_NOWHERE, SLAB_CURRENT, SLAB_PARTIAL }; /* current: a heap carves it, or it is being stripped */
/* unsettled: large, with small pages, not yet freed; probed: so are some in its middle */
enum run_place { RUN_SETTLED, RUN_UNSETTLED, RUN_PROBED, RUN_WINDOW };

/* A run's word of life says who has it: a caller (it is the block's mark, which is odd: mid.c), a thread that keeps it
 * (RUN_KEPT times the heap's number) or nobody. A short run in hand or in the depot has its mark still. A growth window
 * is held for the moment in which its owner changes it or its tail is purged. */
enum run_life { RUN_FREE = 0, RUN_HELD = 2, RUN_KEPT = 4 /* times the number of the heap */ };

/* A pair of cache lines each, or two threads at neighbouring slabs would take each other's descriptor away. */
struct span {
    _Alignas(CACHE_PAIR) union {
        struct {
            uint8_t kind;  /* enum span_kind; inside: see back */
            uint8_t class; /* slab: its class */
            uint8_t place; /* enum slab_place, or enum run_place */
            union {
                uint8_t zeroed; /* run, free span: never written since the kernel gave it */
                uint8_t part;   /* slab: in whose list it waits: the part of the thread that took it new */
            };
            union {
                uint32_t touched;   /* run, free span: units from the start that may hold pages */
                struct {            /* slab; under the class lock */
                    uint16_t bare;  /* bit i: part i need hold no pages; free blocks that begin there are not marked */
                    uint16_t quiet; /* rounds since a block came or went, then SLAB_STRIPPED */
                };
            };
        };
        uint64_t state; /* slab: all of these. Once it has blocks they are POKEd, for any part's threads look */
    };
    uint32_t back;     /* units to the span's first one; kept in every unit of a slab, else in the last one */
    uint32_t units;    /* length in units, in the first descriptor */
    uintptr_t address; /* of the first byte */
    union {
        struct {               /* slab */
            uint32_t carved;   /* blocks ever handed out; written by the carving heap, else under the class lock */
            uint32_t returned; /* blocks that are back; under the class lock, as the bits: i is set, block i is back */
            union {
                uint64_t *words; /* tiny */
                uint64_t word;   /* L2 */
            };
            uint32_t lifeless; /* always 0: a run has its word of life here */
            uint32_t heap;     /* number of the heap that carves it, 0 none */
        };
        struct { /* run */
            union {
                size_t size;      /* bytes asked for; of a short run: the longest block that it serves */
                uint64_t idle_ns; /* growth window that is nobody's: since when */
            };
            uint32_t site;   /* number of the site that asked for it, 0 unknown */
            uint32_t start;  /* bytes from the run to its block: the colour, below RUN_COLOURS lines */
            uint32_t life;   /* the block's mark, or enum run_life */
            uint32_t wanted; /* growth window: most units that its blocks have had since the last round of purging */
        };
        struct {                        /* free span */
            struct span *newer, *older; /* dirty ones by age */
            uint64_t freed_ns; /* when, the mean of its units; even, so it is no mark where a run has its life */
        };
    };
    struct span *next; /* class list, run bin, or free bin */
    struct span *prev;
};

/* One bit per unit of a superslab. */
#if HAK_SLAB_SHIFT < 15
__extension__ typedef unsigned __int128 unit_mask;
#else
typedef uint64_t unit_mask;
#endif
#define UNIT_MASK_BITS (8 * (uint32_t)sizeof(unit_mask))
_Static_assert(SUPERSLAB_UNITS_MAX <= UNIT_MASK_BITS, "a superslab keeps its free units in one word");

/* In a table beside the arena's spans, one row per MiB; superslabs of 2 MiB use the first of two. */
struct superslab {
    struct superslab *next, *prev; /* in the list of those with free units */
    uint32_t first;                /* number of its first unit in the arena */
    uint32_t units;
    uint32_t free_units;
    uint32_t bare_slabs;  /* slabs with parts without pages */
    unit_mask free_mask;  /* bit i: unit i is free */
    unit_mask dirty_mask; /* bit i: unit i is free and may hold pages */
    struct arena *arena;
    uint64_t freed_ns; /* when a unit was last given back */
    bool listed;
    bool huge;      /* huge pages were asked for */
    bool failed;    /* when half of it was taken, but the kernel did not move it then */
    bool sparse;    /* and are not wanted now, since pages went back */
    bool halved;    /* half of it was taken at least once */
    bool moved;     /* what is resident here was moved into a huge page or is now, superslab or not (region.c) */
    uint32_t forks; /* generation of the process that made it (superslab.c) */
};

struct arena {
    uintptr_t base;               /* aligned to SUPERSLAB_LARGE */
    size_t bytes;                 /* from base that have descriptors */
    size_t range;                 /* bytes that are this arena's alone; fewer where others have a mapping in the way */
    uint32_t units;               /* range / UNIT_BYTES, or those before what is in the way */
    uint32_t born;                /* units below the frontier, all in spans; the rest was never used */
    size_t writable;              /* bytes from base that may be written */
    struct span *spans;           /* one per unit */
    struct superslab *superslabs; /* one per SUPERSLAB_SMALL */
    bool reserved;                /* the rest of its range is reserved, too; else it is nobody's */
};

/* --- one size class, shared part ---------------------------------------------------------------------------------- */

struct size_class {
    uint64_t start; /* ceil(2^64 / size): offset * start % 2^64 < start exactly when offset is a block's start */
    uint32_t size;  /* bytes per block; 0 for class 0, which is empty */
    uint32_t slab_units;
    uint32_t slab_blocks;
};

/* One part of a row's depot: magazines that no thread works from. A visit moves this line, and the magazine's first
 * block, from core to core, and nothing else, so visits are counted here, too. */
struct depot {
    _Alignas(CACHE_LINE) struct lock lock; /* guards the rest; held for a few instructions, or a search */
    _Atomic uint32_t contended;            /* times the lock was not free at once */
    uintptr_t top;                         /* head of the uppermost magazine, as in struct chain */
    uint32_t magazines, blocks;
    uint32_t low;           /* fewest magazines since the last trim: so many were of no use */
    int32_t given;          /* pushes less requests, by the part's threads or, for short runs, by all: DEPOT_ASKED */
    uint32_t least, idle;   /* fewest magazines in this turn of DEPOT_TURN pushes, and in the last one */
    uint16_t ebb, last_ebb; /* the same, but no turn ends while there are many more: a wave is one turn */
    uint32_t told;          /* blocks that the sum over all depots counts for this one */
    uint64_t pushes, pops;
};

/* Slabs of one class in one part. */
struct class_slabs {
    _Alignas(CACHE_LINE) struct lock lock; /* guards the list and every slab of the part */
    struct span *partial;                  /* slabs with returned blocks */
    struct span *last;                     /* the last of them; stripped ones come last */
    struct span *cursor;                   /* the next one that a round of stripping looks at */
    uint32_t slabs, returned;              /* slabs there are, and blocks that were given back to them */
    size_t used;                           /* bytes that its threads moved since `used_ns`: ... */
    uint64_t used_ns;                      /* ... when they had last moved SLABS_USED */
};

/* What malloc and free touch of a heap on a hit. Short runs are in hand as blocks of slabs are: malloc and free take
 * the same steps for all sizes, so no branch has to foretell which one comes next. */
struct bins {
    struct bin small[CLASSES];        /* the first is always empty and full at once; slot 0: empty_block's address */
    struct bin shorts[RUN_SHORT + 1]; /* short runs, by units; the first is always empty and full at once */
};
_Static_assert(offsetof(struct bins, shorts) == CLASSES * sizeof(struct bin), "bins of short runs follow as more rows");

/* --- one thread's everything -------------------------------------------------------------------------------------- */

/* The runs that a thread keeps beside the short ones in hand: free for it, with their pages (kept.c). */
struct kept {
    bool busy;                   /* the thread is at these lists */
    bool visited;                /* it was there since a collector looked */
    bool asked;                  /* a collector asks for them */
    bool left;                   /* in a child: their thread stayed behind, and was not at them */
    uint32_t life;               /* word of life of a run that is here */
    uint64_t bits;               /* bit b: runs[b] is not empty */
    uint64_t used;               /* bit b: a run of runs[b] served since the round began */
    struct span *runs[RUN_BINS]; /* by length */
    size_t bytes;                /* in them */
    size_t idle;                 /* fewest bytes since the round began (mid_age) */
    size_t taken;                /* bytes collected that the thread does not know of yet */
    size_t told, portion;        /* bytes counted in the sum over all threads; by how much these may be wrong */
    struct lock lock;            /* held while somebody collects; the rest is the collector's, under collect_lock: */
    uint64_t seen_ns;            /* when the thread was last found to have been at its lists */
    uint64_t out_bits;           /* what was taken from these lists, and is not in the arena yet */
    struct span *out[RUN_BINS];
    struct heap *due; /* the next one that is collected from */
};

/* What a thread has in hand, from which others may take while it rests (hand.c, rest.c). */
struct hand {
    bool busy;        /* the thread is at it, beyond the hits */
    bool asked;       /* a collector asks for it */
    bool shut;        /* it was found at rest: bins take no block, and may have holes */
    bool told;        /* since they take blocks again: the thread may free HAND_TOLD or more by hits, ... */
    size_t unheard;   /* ... or so much until now */
    struct lock lock; /* held while somebody collects; the rest is the collector's: */
    uint64_t look;    /* what it looked like at the last round */
};

/* A class whose freed blocks a thread keeps apart from those it takes (magazine.c). */
struct apart {
    uint32_t frees; /* since the last look, plus one; 0: they are not kept apart */
    uint32_t wait;  /* magazines to be given until they may be again */
    int64_t out;    /* blocks that the thread's callers had at the last look */
    uint32_t freed; /* since the slabs of its part were last counted */
    uint32_t slabs; /* that there were then */
};

enum heap_state { HEAP_FREE, HEAP_LIVE, HEAP_HELD }; /* held: free, while its pages go back */

struct heap {
    struct bins bins;
    struct magazine loaded[CLASSES];    /* the slots that bins point into; the bin says how many blocks */
    struct magazine spare[CLASSES];     /* the magazine behind it, once full; or freed blocks that are kept apart */
    uintptr_t *slots;                   /* free ones for short magazines, behind the heap */
    uint16_t capacity[CLASSES];         /* in force; from the knobs or ACE, at a refill or spill */
    uint16_t capacity_of_few[CLASSES];  /* what it would be if there were few threads */
    uint8_t lent[CLASSES - WIDE_CLASS]; /* requests that longer classes might serve, modulo NEAR_MANY */
    uint8_t short_lent[RUN_SHORT + 1];  /* requests that longer short runs served, by units; the same modulo */
    uint8_t given[CLASSES];             /* units since the last refill, up to GIVEN_MANY; or GIVEN_ALL */
    uint32_t given_pops[CLASSES];       /* pops of its part of the depot when it began to give, plus its own since */
    struct apart apart[CLASSES];
    struct hand hand;
    uint16_t holes[ROWS];          /* lowest slots of each row of bins, whose blocks were collected */
    uint16_t limits[ROWS];         /* while it is shut: where the limits of its bins were, by slot */
    struct span *current[CLASSES]; /* the slab being carved */
    struct kept kept;              /* runs */
    uintptr_t short_slots[RUN_SHORT + 1][1 + RUN_SHORT_MOST]; /* by units: what tops and limits point into */
    uint32_t run_round;       /* runs that left the hand, or were longer, since they last aged; or RUN_ENDED */
    size_t run_allowed;       /* bytes of runs that it may keep */
    size_t short_bytes;       /* most bytes of short runs of each length in hand; 0: none, or fewer than there are */
    uint16_t shorts_kept;     /* times in a row that some left the hand for its lists, until the hand's limits fell */
    uint8_t shorts_bursts;    /* times that it soon took runs after that, up to SHORTS_BURSTS_MAX */
    const struct span *fresh; /* large run, untouched before, that was handed out last */
    size_t grown_bytes; /* copied for small blocks that grew and found no window, since it last asked for a new one */
    bool grows_long;    /* its last block in a window became longer than GROWN_SMALL */
    int32_t thread;     /* the thread's number */
    size_t given_bytes; /* of all classes, since the last refill of any */
    bool gave_all;      /* it gave much of all classes, and took nothing since */
    bool homed;         /* it had given HOMES_LEAST in a row before it last took something */
    bool slotted;       /* a magazine has slots */
    uint64_t given_ns;  /* when it last gave much in a row, or a run, or its hand's limits fell */
    uint8_t trades[CLASSES]; /* times it gave less, and took it again */
    uint8_t turns[CLASSES];  /* times in a row that its two magazines changed places */
    uint8_t bursts[CLASSES]; /* times it soon took again what it gave in a row, up to BURSTS_MAX, or took turns: ... */
    uint8_t peaks;           /* ... the same of much of all classes, or of runs, up to PEAKS_MAX */
    uint32_t run_given;      /* runs given to the arena since one was taken from it */
    size_t run_held;         /* bytes of runs this thread took from the arena minus those it gave back */
    size_t taken_seen;       /* slab_units_taken when it last looked at what it does not use (heap_shed), ... */
    size_t cold_seen;        /* ... slab_units_cold, ... */
    uint32_t looks[CLASSES]; /* ... and how each class looked */
    const struct front *front; /* the thread's: one who has it at the same place later knows that this thread ended */
    uint32_t number;           /* 1, 2, ... */
    uint32_t helped;           /* part of a depot where another's magazine was found last */
    _Atomic uint32_t state;    /* enum heap_state */
    struct heap *next;         /* registry: heaps are never unmapped */
    struct heap *in_row;       /* next free one, or next in its row of those that have a front */
    _Atomic uint64_t *stats;   /* see stats.c */
    /* Calls since the thread began, by class. What the spare magazine served alone are swaps, which cost no more than
     * the call. Observers read these. */
    uint32_t refills[CLASSES];
    uint32_t spills[CLASSES];
    uint32_t swaps[CLASSES];
    uint32_t seen[CLASSES]; /* their sum when ACE last looked; ACE's */
    int64_t moved[CLASSES]; /* blocks that came with refills minus those that went with spills */
};

/* How blocks lie in a slab of a class. */
struct layout {
    uint32_t within; /* the bits of an address that are its offset in the slab ... */
    uint32_t start;  /* ... and what offsets are multiplied by */
};

/* What a free, or a resize, asks of an address. One base address reaches both tables. */
struct owners {
    struct layout layout[ROWS];
    /* By unit: above the products of the blocks that begin there, and of nothing else; its lowest byte is twice the
     * row. 0: no slab's, and not the first one of a short run. */
    uint32_t bound[MAP_MASK + 1];
};

enum front_state { FRONT_NEW, FRONT_LIVE, FRONT_EXITED };

struct front {
    struct bins *bins; /* the heap's; without a heap, bins that hold none and take none */
    char *sizes;       /* plus a tiny size, rounded down to a granule: the address of its bin */
    size_t tiny_end;   /* TINY_MAX + 1; 0 without a heap, and while the other two change */
    struct heap *heap;
    uint32_t state;       /* enum front_state */
    uint32_t early_frees; /* served before the thread had a heap, up to EARLY_FREES */
};

_Static_assert(HAK_INLINE_MAX == TINY_MAX && HAK_INLINE_MASK == MAP_MASK &&
                   sizeof(struct bin) == sizeof(struct hak_bin_t) &&
                   offsetof(struct front, bins) == offsetof(struct hak_front_t, bins) &&
                   sizeof(struct layout) == sizeof(struct hak_layout_t) &&
                   offsetof(struct owners, bound) == offsetof(struct hak_owners_t, bound),
               "code inlined from the header sees the same front");
_Static_assert((ROWS - 1) * 2 <= BOUND_ROW, "a byte of a unit's bound says its row");
_Static_assert(sizeof(struct bin) == GRANULE && offsetof(struct heap, bins.small) % GRANULE == 0,
               "a tiny size, added to the first bin's address and rounded up, is its bin's, for a heap begins a page");
_Static_assert(sizeof(struct rack_box) == (size_t)64 << 10, "a box is a number of pages, on any machine");
_Static_assert(sizeof(struct span) == CACHE_PAIR && sizeof(struct depot) == CACHE_LINE, "nobody shares their lines");

/* --- stack pools -------------------------------------------------------------------------------------------------- */

#define POOL_CHUNK_MIN ((size_t)16 << 10)     /* bytes; a pool's first chunk, then as much again each time ... */
#define POOL_CHUNK_MAX SUPERSLAB_LARGE        /* ... up to here; from here on aligned for huge pages */
#define POOL_BATCH_MAX 64u                    /* objects that move between lane and depot at once ... */
#define POOL_BATCH_BYTES ((size_t)64 << 10)   /* ... and their bytes at most, unless one object has more */
#define POOL_RECALL 16u                       /* objects that come back from the counted list to the stack at a time */
#define POOL_LANES 64u                        /* lane 0 serves, under the lock, threads that found none of their own */
#define POOL_CONTROL_BYTES ((size_t)64 << 10) /* control blocks are mapped so many bytes at a time */
#define POOL_CLOSED_MAX 1024u /* closed pools kept recognisable before their control blocks are reused */

struct pool_chunk {
    struct pool_chunk *next;
    size_t bytes;    /* mapped, this header included */
    size_t idle;     /* scratch of shrink: idle objects found in this chunk */
    char *first;     /* objects, one stride apart ... */
    char *fresh;     /* ... carved up to here ... */
    char *end;       /* ... to here */
    bool ready;      /* made by preallocation */
    uint64_t live[]; /* checked build: one bit per object */
};

struct pool_lane {
    _Alignas(CACHE_LINE) void **loaded; /* idle objects, at most a batch */
    void **spare;                       /* a whole batch behind it */
    uint32_t count; /* objects in `loaded`, or more: a batch that shrink left short counts as whole */
    _Atomic uint64_t allocations, deallocations;
};

enum pool_state { POOL_CLOSED, POOL_OWNED, POOL_SHARED };

struct pool {
    _Alignas(CACHE_LINE) struct hak_pool hit; /* what the inlined path sees; the handle */
    void *keeper;                             /* owner's variant: the thread */
    void **counted; /* owner's variant: the lower part of the stack, once statistics have been read */
    uint64_t counted_objects;
    enum pool_state state;
    uint32_t batch;             /* objects */
    size_t stride;              /* bytes from object to object */
    size_t alignment;           /* bytes, at least a pointer's */
    struct pool_chunk *carving; /* chunks with fresh objects, the first is carved */
    struct pool_chunk *carved_out;
    uint64_t carved, peak, misses, capacity; /* objects */
    size_t bytes;                            /* of all chunks */
    struct pool_lane *lanes;
    void **depot; /* whole batches; the second word of a batch's first object links to the next batch */
    struct pool *next_closed;
};

#endif
