/* numa.c: which memory node serves new pages. Owns the translation from our policies to the kernel's.
 *
 * It makes raw system calls, so that no further library is needed. Placement is a request, made once per region on the
 * slowest path; memory that could not be placed serves all the same. Called by arena.c and poolchunk.c for what they
 * map, and by programs through hak_place. */

#include <linux/mempolicy.h>
#include <sched.h>

#define NODE_BITS 1024u /* the kernel's own limit (MAX_NUMNODES) */
#define NODE_WORDS (NODE_BITS / 64)

struct nodes {
    uint64_t mask[NODE_WORDS];
};

/* Nodes that this process may use; node 0 where the kernel does not tell. */
static struct nodes numa_allowed(void)
{
    struct nodes nodes = {0};
    if (syscall(SYS_get_mempolicy, NULL, nodes.mask, NODE_BITS, NULL, MPOL_F_MEMS_ALLOWED) != 0)
        nodes = (struct nodes){.mask = {1}};
    return nodes;
}

static bool numa_has(const struct nodes *nodes, int node)
{
    return node >= 0 && node < (int)NODE_BITS && bit_of(nodes->mask, (size_t)node);
}

/* Translates one of our policies into the kernel's mode and nodes. -EINVAL: no such policy, or no such node for this
 * process. */
static int numa_mode(int policy, int node, struct nodes *nodes)
{
    *nodes = (struct nodes){0};
    if (policy == HAK_PLACE_DEFAULT) return MPOL_DEFAULT;
    if (policy == HAK_PLACE_LOCAL) return MPOL_LOCAL;
    struct nodes allowed = numa_allowed();
    if (policy == HAK_PLACE_INTERLEAVE) {
        *nodes = allowed;
        return MPOL_INTERLEAVE;
    }
    if (policy != HAK_PLACE_BIND || !numa_has(&allowed, node)) return -EINVAL;
    nodes->mask[node / 64] = UINT64_C(1) << (node % 64);
    return MPOL_BIND;
}

/* Asks for a policy for these pages or, where they are NULL, for the calling thread. DEFAULT and LOCAL take no nodes.
 * The count of bits is one too high, because the kernel reads one less than it is told. 0 or a negative errno. */
static int numa_request(void *pages, size_t size, int policy, int node)
{
    struct nodes nodes;
    int mode = numa_mode(policy, node, &nodes);
    if (mode < 0) return mode;
    bool named = mode == MPOL_INTERLEAVE || mode == MPOL_BIND;
    const uint64_t *mask = named ? nodes.mask : NULL;
    unsigned long bits = named ? NODE_BITS + 1 : 0;
    stat_shared(STAT_sys_mbind, 1);
    long refused = pages != NULL ? syscall(SYS_mbind, pages, size, mode, mask, bits, 0)
                                 : syscall(SYS_set_mempolicy, mode, mask, bits);
    return refused ? -errno : 0;
}

/* Applies the policy that the knobs choose to a region just mapped. A placement_node that this process may not use is
 * reported once; a kernel that refuses placement is not worth a line. */
static void numa_place(void *pages, size_t size)
{
    static _Atomic bool said;
    int policy = (int)knob(KNOB_placement), node = (int)knob(KNOB_placement_node);
    if (LIKELY(policy == HAK_PLACE_DEFAULT)) return;
    bool missing = numa_request(pages, size, policy, node) == -EINVAL && policy == HAK_PLACE_BIND;
    if (!missing || atomic_exchange(&said, true)) return;
    struct line line = {0};
    line_text(&line, "hakmem: placement_node ");
    line_number(&line, node);
    line_text(&line, " is not a node that this process may use; memory is placed as without a request");
    line_end(&line);
}

int hak_node_count(void)
{
    struct nodes nodes = numa_allowed();
    int count = 0;
    for (unsigned i = 0; i < NODE_WORDS; i++) count += __builtin_popcountll(nodes.mask[i]);
    return count;
}

int hak_node_current(void)
{
    unsigned cpu, node;
    return getcpu(&cpu, &node) == 0 ? (int)node : 0;
}

int hak_place(void *pages, size_t size, int policy, int node)
{
    return pages != NULL ? numa_request(pages, size, policy, node) : -EINVAL;
}

int hak_place_thread(int policy, int node) { return numa_request(NULL, 0, policy, node); }

int hak_place_read(const void *address, int *policy, int *node)
{
    struct nodes nodes = {0};
    int mode;
    if (syscall(SYS_get_mempolicy, &mode, nodes.mask, NODE_BITS, address, address != NULL ? MPOL_F_ADDR : 0) != 0)
        return -errno;
    int first = 0;
    while (first < (int)NODE_BITS && !numa_has(&nodes, first)) first++;
    if (mode == MPOL_PREFERRED && first < (int)NODE_BITS) return -EINVAL; /* a policy that is none of ours */
    static const int ours[] = {[MPOL_DEFAULT] = HAK_PLACE_DEFAULT,
                               [MPOL_PREFERRED] = HAK_PLACE_LOCAL, /* as kernels before 5.14 say it */
                               [MPOL_LOCAL] = HAK_PLACE_LOCAL,
                               [MPOL_INTERLEAVE] = HAK_PLACE_INTERLEAVE,
                               [MPOL_BIND] = HAK_PLACE_BIND};
    if (mode < 0 || mode >= COUNT(ours)) return -EINVAL;
    *policy = ours[mode];
    *node = mode == MPOL_BIND ? first : 0;
    return 0;
}
