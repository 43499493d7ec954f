/* run.c: opens a rig of lanes, runs them chunk by chunk and reads clocks and kernel counters around each chunk.
 *
 * A slow-down is injected as work that is done and not counted: with --slowdown 1 each chunk does 1 % more iterations
 * than it reports. That is exact in instructions, needs no calibration, and has the noise of the real thing.
 *
 * With --toggle a knob changes from chunk to chunk, so that both its values meet the same process, the same pages and
 * the same minute: where two processes differ by a tenth, neighbouring chunks differ by a hundredth. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LEAST_PAUSE_MS = 5 };

/* --- lanes -------------------------------------------------------------------------------------------------------- */

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    struct rig *rig = lane->rig;
    const struct options *options = rig->options;
    for (;;) {
        pthread_barrier_wait(&rig->start);
        if (rig->stop) return NULL;
        if (rig->rest) rig->rest();
        lane->ops = options->workload->body[options->backend](lane, lane->iterations);
        pthread_barrier_wait(&rig->end);
    }
}

static bool has_threads(const struct options *options)
{
    return options->threads > 1 || options->workload->flags & THREADED;
}

/* A permutation of one lane's slots (Fisher and Yates), the same for every allocator. */
static uint32_t *shuffled_order(uint64_t slots, unsigned seed)
{
    uint32_t *order = map_zeroed(slots * sizeof *order);
    for (uint32_t i = 0; i < slots; i++) {
        uint32_t other = (uint32_t)rand_r(&seed) % (i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    return order;
}

static void lane_open(struct rig *rig, uint64_t id)
{
    const struct options *options = rig->options;
    struct lane *lane = &rig->lane[id];
    lane->rig = rig;
    lane->id = id;
    lane->shape = (struct shape){options->size, options->workload->shape.smallest, options->slots};
    lane->block = rig->block + id * rig->apart;
    lane->bytes = rig->bytes + id * rig->apart;
    lane->random = (options->seed + id) * 0x9e3779b97f4a7c15u; /* odd constant: never 0, as seed + id is not */
    if (has_threads(options) && pthread_create(&lane->thread, NULL, lane_main, lane))
        die(EXIT_FAILURE, "could not start thread %llu of %llu", (unsigned long long)id + 1,
            (unsigned long long)options->threads);
}

/* How many slots one lane's first is from the next lane's: whole pages. Else a core's prefetcher, which fetches
 * neighbouring lines up to the page's end, would take lines that another core writes. */
static uint64_t slots_apart(const struct options *options)
{
    enum { PAGE_SLOTS = 4096 / sizeof(uint32_t) };
    uint64_t slots = workload_slots(options);
    return options->threads > 1 ? (slots + PAGE_SLOTS - 1) / PAGE_SLOTS * PAGE_SLOTS : slots;
}

static void rig_open(struct rig *rig, const struct options *options)
{
    unsigned flags = options->workload->flags, threads = (unsigned)options->threads;
    rig->options = options;
    rig->apart = slots_apart(options);
    rig->slots = rig->apart * threads;
    rig->lane = map_zeroed(threads * sizeof *rig->lane);
    rig->block = map_zeroed(rig->slots * sizeof *rig->block);
    rig->bytes = map_zeroed(rig->slots * sizeof *rig->bytes);
    rig->order = flags & SHUFFLED ? shuffled_order(options->slots, (unsigned)options->seed) : NULL;
    rig->ring = flags & PAIRED ? map_zeroed(threads / 2 * sizeof *rig->ring) : NULL;
    rig->mark = flags & PHASED ? map_zeroed(MAX_MARKS * sizeof *rig->mark) : NULL;
    pthread_barrier_init(&rig->start, NULL, threads + 1);
    pthread_barrier_init(&rig->end, NULL, threads + 1);
    pthread_barrier_init(&rig->round, NULL, threads);
    for (unsigned id = 0; id < threads; id++) lane_open(rig, id);
}

static void rig_close(struct rig *rig)
{
    if (!has_threads(rig->options)) return;
    rig->stop = true;
    pthread_barrier_wait(&rig->start);
    for (unsigned id = 0; id < rig->options->threads; id++) pthread_join(rig->lane[id].thread, NULL);
}

/* How many of n iterations each lane does: whole rounds, at least one. */
static uint64_t share(const struct options *options, uint64_t n)
{
    const struct workload *workload = options->workload;
    uint64_t unit = workload->round ? workload->round : 1;
    uint64_t workers = workload->flags & TOGETHER ? 1
                       : workload->flags & PAIRED ? options->threads / 2
                                                  : options->threads;
    uint64_t units = n / workers / unit;
    return (units ? units : 1) * unit;
}

/* Runs each lane for so many iterations and returns their operations. */
static uint64_t run_lanes(struct rig *rig, uint64_t iterations)
{
    const struct options *options = rig->options;
    uint64_t ops = 0;
    for (unsigned id = 0; id < options->threads; id++) rig->lane[id].iterations = iterations;
    if (has_threads(options)) {
        pthread_barrier_wait(&rig->start);
        pthread_barrier_wait(&rig->end);
    } else {
        if (rig->rest) rig->rest();
        rig->lane->ops = options->workload->body[options->backend](rig->lane, iterations);
    }
    for (unsigned id = 0; id < options->threads; id++) ops += rig->lane[id].ops;
    return ops;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

static struct result result;

static struct {
    char name[64];
    long long value[2];
    int (*set)(const char *name, int64_t value);
    uint64_t (*firings)(int slow);
} toggle;

static void toggle_open(struct rig *rig)
{
    const char *told = rig->options->toggle;
    if (!told) return;
    toggle.set = (int (*)(const char *, int64_t))backend_function("hak_knob_set");
    toggle.firings = (uint64_t(*)(int))backend_function("hak_ace_firings");
    rig->rest = (void (*)(void))backend_function("hak_thread_idle");
    if (!toggle.set || !toggle.firings || !rig->rest)
        die(EXIT_USAGE, "--toggle needs libhakmem.so in LD_PRELOAD: nobody else has knobs");
    char rest;
    if (sscanf(told, "%63[a-z0-9_]=%lld,%lld%c", toggle.name, &toggle.value[0], &toggle.value[1], &rest) != 3)
        die(EXIT_USAGE, "--toggle %s: must be NAME=A,B, a knob and two whole numbers", told);
    for (int i = 0; i < 2; i++) {
        int failed = toggle.set(toggle.name, toggle.value[i]);
        if (failed == -1) die(EXIT_USAGE, "--toggle %s: there is no such knob", told);
        if (failed == -3) die(EXIT_USAGE, "--toggle %s: this knob is read when a process starts", told);
        if (failed) die(EXIT_USAGE, "--toggle %s: %lld is out of the knob's range", told, toggle.value[i]);
    }
}

/* Sets the knob for a chunk. Which value comes first in a pair of chunks is drawn from the seed. */
static void toggle_set(const struct options *options, uint64_t chunk)
{
    uint64_t mixed = (options->seed << 32 | chunk / 2) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93u; /* odd constants: the uppermost bit depends on all others */
    int side = (int)(mixed >> 63) ^ (int)(chunk & 1);
    toggle.set(toggle.name, toggle.value[side]);
    result.chunk_side[chunk] = side;
}

/* Plans how much each chunk does. The extra work must be a whole number of rounds; it may miss what was wanted by a
 * hundredth of that. */
static void plan_chunks(const struct options *options)
{
    uint64_t unit = options->workload->round ? options->workload->round : 1;
    double chunk = (double)options->iterations * options->scale / (double)options->chunks;
    double wanted = options->slowdown / 100;
    result.counted = share(options, (uint64_t)chunk);
    uint64_t extra = (uint64_t)((double)(result.counted / unit) * wanted + 0.5) * unit;
    double error = (double)extra / (double)result.counted - wanted;
    if (error > wanted / 100 || error < -wanted / 100)
        die(EXIT_USAGE, "--slowdown %g is no whole number of the %llu steps of a chunk: raise --iterations",
            options->slowdown, (unsigned long long)(result.counted / unit));
    result.done = result.counted + extra;
}

/* One line for whoever watches a long run; written without the allocator under test. */
static void stream_chunk(uint64_t ops, uint64_t cpu_ns)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    dprintf(STDERR_FILENO,
            "{\"ops\": %llu, \"cpu_ns\": %llu, \"rss_bytes\": %llu, \"minor_faults\": %ld, "
            "\"major_faults\": %ld}\n",
            (unsigned long long)ops, (unsigned long long)cpu_ns, (unsigned long long)resident_bytes(), used.ru_minflt,
            used.ru_majflt);
}

static void run_chunk(struct rig *rig, uint64_t chunk)
{
    const struct lane *first = rig->lane;
    if (toggle.set) toggle_set(rig->options, chunk);
    uint64_t wall = clock_ns(CLOCK_MONOTONIC) - first->untimed_ns;
    uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - first->untimed_cpu_ns;
    uint64_t ops = (uint64_t)((unsigned __int128)run_lanes(rig, result.done) * result.counted / result.done);
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - first->untimed_cpu_ns - cpu;
    wall = clock_ns(CLOCK_MONOTONIC) - first->untimed_ns - wall;
    if (!ops) die(EXIT_USAGE, "chunk %llu did no operation: raise --iterations", (unsigned long long)chunk + 1);
    result.chunk_ns[chunk] = (double)wall / (double)ops;
    result.chunk_cpu_ns[chunk] = (double)cpu / (double)ops;
    result.ops += ops;
    result.elapsed_ns += wall;
    result.cpu_ns += cpu;
    if (rig->options->stream) stream_chunk(ops, cpu);
}

static void sample_idle(double since_ns)
{
    result.idle_time_ms[result.idle_samples] = ((double)clock_ns(CLOCK_MONOTONIC) - since_ns) / 1e6;
    result.idle_rss_bytes[result.idle_samples++] = resident_bytes();
}

/* Sleeps and reads how much is still resident; the bench's own pointers go first, so that they are not counted. */
static void watch_idle(struct rig *rig)
{
    double freed = (double)clock_ns(CLOCK_MONOTONIC);
    uint64_t pause_ms = rig->options->idle_ms / IDLE_SAMPLES;
    if (pause_ms < LEAST_PAUSE_MS) pause_ms = LEAST_PAUSE_MS;
    madvise(rig->block, rig->slots * sizeof *rig->block, MADV_DONTNEED);
    madvise(rig->bytes, rig->slots * sizeof *rig->bytes, MADV_DONTNEED);
    sample_idle(freed);
    for (uint64_t waited = 0; waited < rig->options->idle_ms && result.idle_samples <= IDLE_SAMPLES;
         waited += pause_ms) {
        nanosleep(&(struct timespec){.tv_sec = (time_t)(pause_ms / 1000), .tv_nsec = (long)(pause_ms % 1000) * 1000000},
                  NULL);
        sample_idle(freed);
    }
}

static void measure(struct rig *rig)
{
    const struct options *options = rig->options;
    struct rusage before, after;
    plan_chunks(options);
    toggle_open(rig);
    reset_peak();
    result.rss_start_bytes = resident_bytes();
    if (options->warmup)
        result.warmup_ops = run_lanes(rig, options->warmup == UNSET ? result.counted : share(options, options->warmup));
    uint64_t warm_marks = rig->lane->turn, warm_faults = rig->lane->untimed_faults;
    uint64_t fired = toggle.set ? toggle.firings(0) : 0;
    getrusage(RUSAGE_SELF, &before);
    for (uint64_t chunk = 0; chunk < options->chunks; chunk++) run_chunk(rig, chunk);
    getrusage(RUSAGE_SELF, &after);
    result.ace_firings = toggle.set ? toggle.firings(0) - fired : 0;
    result.rss_end_bytes = resident_bytes();
    result.peak_rss_bytes = proc_bytes("/proc/self/status", "VmHWM:");
    result.thp_bytes = proc_bytes("/proc/self/smaps_rollup", "AnonHugePages:");
    result.minor_faults = after.ru_minflt - before.ru_minflt - (long)(rig->lane->untimed_faults - warm_faults);
    result.major_faults = after.ru_majflt - before.ru_majflt;
    result.context_switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw;
    result.mark = rig->mark ? rig->mark + warm_marks : NULL;
    result.marks = rig->mark ? rig->lane->turn - warm_marks : 0;
    if (options->workload->flags & IDLE) watch_idle(rig);
}

/* ns that no allocator gets below: a pair is at the least a store and a load that depends on it, two cycles where the
 * core renames memory, and no core of today has more than six and a half a nanosecond. A call is half a pair. */
static double least_ns(const struct options *options) { return strcmp(options->workload->unit, "call") ? 0.3 : 0.15; }

static void settle(struct rig *rig)
{
    uint64_t peak = 0;
    result.peak_live_rss_bytes = rig->peak_rss_bytes;
    workload_drain(rig);
    result.checksum = rig->checksum * 31 + result.ops;
    rig_close(rig);
    for (unsigned id = 0; id < rig->options->threads; id++) peak += rig->lane[id].live_peak_bytes;
    result.live_peak_bytes = peak > rig->drained_bytes ? peak : rig->drained_bytes;
    double least = least_ns(rig->options), measured = (double)result.cpu_ns / (double)result.ops;
    if (measured < least)
        die(EXIT_NO_WORK, "%s took %.3f ns of CPU time per %s: below %g ns the compiler has removed the work",
            rig->options->workload->name, measured, rig->options->workload->unit, least);
}

const struct result *run(const struct options *options)
{
    static struct rig rig;
    rig_open(&rig, options);
    measure(&rig);
    settle(&rig);
    return &result;
}
