/* hakmem.c: the library as one translation unit. The list below, ground floor first, is the architecture: a file uses
 * only what stands above it. Internals are static and there are no forward declarations, so the compiler enforces the
 * order (-Werror=implicit-function-declaration). Read it from the top. */

/* clang-format off */
#include "base.h"       /* first: it chooses what the system headers declare */
#ifndef HAK_ACE
#define HAK_ACE 1
#endif

#define HAK_LIBRARY
#include "../include/hakmem.h"
#include "types.h"

#include "line.c"       /* what is printed */
#include "stats.c"      /* counters */
#include "knobs.c"      /* tunables */
#include "os.c"         /* the kernel, locks, fatal errors */
#include "events.c"     /* what ACE saw and did */
#include "numa.c"       /* which memory node */

#include "sizeclass.c"  /* size -> class */
#include "arena.c"      /* address space and free spans */
#include "purge.c"      /* free spans' pages go back */
#include "superslab.c"  /* 1-2 MiB regions */
#include "region.c"     /* huge pages under what is resident anyway */
#include "poolchunk.c"  /* memory of stack pools */
#include "poollane.c"   /* threads that share one */
#include "stackpool.c"  /* objects of one size */
#include "kept.c"       /* runs that threads keep */
#include "marks.c"      /* which blocks of a slab are returned */
#include "slab.c"       /* equal blocks */
#include "strip.c"      /* idle parts of slabs go back */
#include "rack.c"       /* slots that go to the depot with their magazine */
#include "chain.c"      /* a magazine stored in its own blocks */
#include "depot.c"      /* magazines between threads */
#include "hand.c"       /* what a thread has in hand, and others may ask for */
#include "magazine.c"   /* thread caches */

#include "site.c"       /* call-site rules */

#include "tiny.c"       /* up to 1 KiB, and the hits of all blocks up to 512 KiB */
#include "l2.c"         /* above 8 KiB: a longer block where none lies ready */
#include "mid.c"        /* up to 1 MiB */
#include "short.c"      /* up to 512 KiB: between hand, lists and threads */
#include "large.c"      /* 1 MiB and more, and blocks that grow */

#include "rest.c"       /* what resting threads have in their magazines */
#include "heap.c"       /* a thread's everything */
#include "helper.c"     /* the background thread */
#include "guard.c"      /* the hardened way of serving */
#include "observe.c"    /* the heap read from outside */

#include "ace/arithmetic.c" /* logarithms and chance without libm */
#include "ace/bandit.c"     /* what a bandit remembers */
#include "ace/ucb.c"        /* indices: mean and bonus */
#include "ace/policy.c"     /* which arm it plays */
#include "ace/simulate.c"   /* a bandit against known means */
#if HAK_ACE
#include "ace/metrics.c"    /* two snapshots -> one reward */
#include "ace/loop.c"       /* one step of the fast and the slow loop */
#include "ace/learner.c"    /* started, stopped, written down */
#else
#include "ace/absent.c"     /* compiled out */
#endif

#include "fork.c"       /* every lock held, a child begins */

#include "alloc.c"      /* the front door */
#include "process.c"    /* the process begins and ends */

/* Weak: the builder links an object that says which build this is, so that builds can share this one. */
#ifndef HAK_VARIANT
#define HAK_VARIANT "release"
#endif
__attribute__((weak)) const char *hak_build_variant(void) { return HAK_VARIANT; }
__attribute__((weak)) const char *hak_build_hash(void) { return "unknown"; }
/* clang-format on */
