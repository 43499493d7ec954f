/* main.c: the command line, and the result as one JSON object. */
#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void pin(int64_t cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) die(EXIT_USAGE, "--cpu %lld: %s", (long long)cpu, strerror(errno));
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static struct options opt = {.warmup = UNSET,
                             .chunks = 5,
                             .seed = 42,
                             .phase_pairs = 400000,
                             .peak_mb = 256,
                             .idle_ms = 3000,
                             .scale = 1,
                             .cpu = -1};
static const char *workload_name, *backend_name = "malloc";
static bool list_wanted, help_wanted;

static const struct option_row {
    const char *name, *meaning;
    enum { WHOLE, REAL, TEXT, SWITCH } kind;
    void *where;
    double least, most;
} option_rows[] = {
    {"workload", "name, see --list", TEXT, &workload_name, 0, 0},
    {"size", "bytes of a block, the largest where sizes vary", WHOLE, &opt.size, 1, 1 << 30},
    {"threads", "threads", WHOLE, &opt.threads, 1, MAX_THREADS},
    {"slots", "live blocks of a thread", WHOLE, &opt.slots, 1, 1 << 26},
    {"iterations", "over all chunks and threads", WHOLE, &opt.iterations, 1, 1e15},
    {"scale", "factor on iterations", REAL, &opt.scale, 1e-9, 1e6},
    {"chunks", "timed parts of the run", WHOLE, &opt.chunks, 1, MAX_CHUNKS},
    {"warmup", "iterations before the first chunk, default as many as a chunk has", WHOLE, &opt.warmup, 0, 1e15},
    {"backend", "malloc, floor or direct", TEXT, &backend_name, 0, 0},
    {"seed", "of sizes and orders", WHOLE, &opt.seed, 1, 4294967295.0},
    {"cpu", "pin to this core", WHOLE, &opt.cpu, 0, CPU_SETSIZE - 1},
    {"slowdown", "percent of work done and not counted", REAL, &opt.slowdown, 0, 1000},
    {"phase-ops", "pairs of a phase, all threads together", WHOLE, &opt.phase_pairs, 1, 1e12},
    {"phase-ms", "length of a phase in time instead", WHOLE, &opt.phase_ms, 1, 1e7},
    {"peak-mb", "idle_peak: live memory at the peak", WHOLE, &opt.peak_mb, 1, 1 << 20},
    {"idle-ms", "idle_peak: time watched after the last free", WHOLE, &opt.idle_ms, 0, 1e7},
    {"toggle", "NAME=A,B: a knob that is A in one chunk of every two and B in the other", TEXT, &opt.toggle, 0, 0},
    {"replay", "a recorded trace, instead of a workload", TEXT, &opt.replay, 0, 0},
    {"partial", "replay what is readable of a damaged trace", SWITCH, &opt.partial, 0, 0},
    {"stream", "print each chunk on stderr as it ends", SWITCH, &opt.stream, 0, 0},
    {"list", "print the table of workloads as JSON", SWITCH, &list_wanted, 0, 0},
    {"help", "print this", SWITCH, &help_wanted, 0, 0},
};
enum { OPTION_ROWS = sizeof option_rows / sizeof *option_rows };

static void set_number(const struct option_row *row, const char *text)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    bool whole = row->kind == REAL || strspn(text, "0123456789") == strlen(text);
    if (!*text || *end || errno || !whole || !(value >= row->least && value <= row->most))
        die(EXIT_USAGE, "--%s %s: must be a %snumber from %.15g to %.15g", row->name, text,
            row->kind == REAL ? "" : "whole ", row->least, row->most);
    if (row->kind == REAL) *(double *)row->where = value;
    else *(uint64_t *)row->where = strtoull(text, NULL, 10);
}

static void read_arguments(int count, char **argument)
{
    for (int i = 1; i < count; i++) {
        const struct option_row *row = option_rows, *past = option_rows + OPTION_ROWS;
        while (row < past && (strncmp(argument[i], "--", 2) || strcmp(argument[i] + 2, row->name))) row++;
        if (row == past) die(EXIT_USAGE, "%s: no such option, see --help", argument[i]);
        if (row->kind == SWITCH) *(bool *)row->where = true;
        else if (++i == count) die(EXIT_USAGE, "--%s needs a value: %s", row->name, row->meaning);
        else if (row->kind == TEXT) *(const char **)row->where = argument[i];
        else set_number(row, argument[i]);
    }
}

static const struct workload *find_workload(void)
{
    if (!workload_name) die(EXIT_USAGE, "--workload NAME or --replay FILE is needed, see --list");
    for (size_t i = 0; i < workload_count; i++)
        if (!strcmp(workloads[i].name, workload_name)) return &workloads[i];
    die(EXIT_USAGE, "--workload %s: no such workload, see --list", workload_name);
}

static enum backend find_backend(const struct workload *workload)
{
    for (unsigned i = 0; i < BACKENDS; i++)
        if (!strcmp(backend_names[i], backend_name)) {
            if (!backend_usable(i, workload))
                die(EXIT_USAGE,
                    i == ON_FLOOR
                        ? "--backend floor cannot run %s: it has no way back for blocks that another thread frees"
                    : i == ON_DIRECT ? "--backend direct: this bench was built without libhakmem (cannot run %s)"
                                     : "--backend malloc cannot run %s: the standard allocator has nothing like it",
                    workload->name);
            return i;
        }
    die(EXIT_USAGE, "--backend %s: must be malloc, floor or direct", backend_name);
}

/* What the command line left open comes from the workload's row. */
static void fill_defaults(const struct workload *workload)
{
    if (!opt.size) opt.size = workload->shape.size;
    if (!opt.threads) opt.threads = workload->threads;
    if (workload->flags & IDLE) opt.slots = (opt.peak_mb << 20) / opt.threads / opt.size;
    else if (!opt.slots) opt.slots = workload->shape.slots;
    if (!opt.iterations) opt.iterations = workload->iterations;
}

static void check_options(const struct workload *workload)
{
    size_t least = workload->shape.smallest << !!(workload->flags & DOUBLING);
    if (opt.size < least) die(EXIT_USAGE, "--size %zu: %s needs at least %zu", opt.size, workload->name, least);
    if (workload->flags & PAIRED && opt.threads % 2)
        die(EXIT_USAGE, "--threads %llu: %s works in pairs, give an even number", (unsigned long long)opt.threads,
            workload->name);
    if (workload->flags & ALONE && opt.threads > 1)
        die(EXIT_USAGE, "--threads %llu: %s stops the clocks in between, so it runs in one thread only",
            (unsigned long long)opt.threads, workload->name);
    if (!opt.slots || opt.slots * opt.threads > 1u << 28)
        die(EXIT_USAGE, "%llu live blocks for each of %llu threads: must be 1 to 2^28 in all",
            (unsigned long long)opt.slots, (unsigned long long)opt.threads);
    if (opt.toggle && opt.chunks % 2)
        die(EXIT_USAGE, "--toggle needs an even number of --chunks, not %llu", (unsigned long long)opt.chunks);
    if (opt.cpu >= 0 && opt.threads > 1)
        die(EXIT_USAGE, "--cpu pins a single thread: leave it out with --threads %llu",
            (unsigned long long)opt.threads);
}

/* Calls of a replay, at least: five passes over a short trace would show a heap's first moments only. With several
 * threads fewer, since in each pass they wait for each other. */
enum { REPLAYED_CALLS = 1000000, REPLAYED_TOGETHER = 100000 };

/* A replay takes its shape from the trace. */
static void choose(const struct trace_facts *facts)
{
    opt.workload = facts ? &replay_workload : find_workload();
    opt.backend = find_backend(opt.workload);
    if (facts) {
        uint64_t passes = (facts->threads > 1 ? REPLAYED_TOGETHER : REPLAYED_CALLS) / facts->events;
        if (!opt.iterations && passes > replay_workload.iterations) opt.iterations = passes;
        opt.threads = facts->threads;
        opt.slots = opt.size = 1;
    }
    fill_defaults(opt.workload);
    check_options(opt.workload);
    if (opt.cpu >= 0) pin(opt.cpu);
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        if ((unsigned char)*text >= ' ') putchar(*text);
    }
    putchar('"');
}

static void print_field(const char *name, const char *text)
{
    printf("\"%s\": ", name);
    print_text(text);
    fputs(", ", stdout);
}

static void print_count(const char *name, uint64_t value) { printf("\"%s\": %llu, ", name, (unsigned long long)value); }

static void print_reals(const char *name, const double *value, uint64_t count)
{
    printf("\"%s\": [", name);
    for (uint64_t i = 0; i < count; i++) printf("%s%.6g", i ? ", " : "", value[i]);
    fputs("], ", stdout);
}

static void print_list(void)
{
    for (size_t i = 0; i < workload_count; i++) {
        const struct workload *workload = &workloads[i];
        fputs(i ? ",\n {" : "[{", stdout);
        print_field("name", workload->name);
        print_field("stresses", workload->stresses);
        print_field("unit", workload->unit);
        print_count("size", workload->shape.size);
        print_count("smallest", workload->shape.smallest);
        print_count("threads", workload->threads);
        print_count("slots", workload->shape.slots);
        print_count("iterations", workload->iterations);
        fputs("\"backends\": [", stdout);
        for (unsigned backend = 0, listed = 0; backend < BACKENDS; backend++)
            if (backend_usable(backend, workload)) printf(listed++ ? ", \"%s\"" : "\"%s\"", backend_names[backend]);
        fputs("]}", stdout);
    }
    puts("]");
}

static void print_help(void)
{
    puts("bench --workload NAME [options]: runs one workload on one allocator, prints one JSON object");
    for (size_t i = 0; i < OPTION_ROWS; i++) printf("  --%-12s %s\n", option_rows[i].name, option_rows[i].meaning);
}

static void print_marks(const struct result *result)
{
    fputs("\"phases\": [", stdout);
    for (uint64_t i = 0; i < result->marks; i++) {
        const struct mark *mark = &result->mark[i];
        printf("%s{\"phase\": %u, \"name\": \"%s\", \"start_ns\": %llu, \"elapsed_ns\": %llu, \"cpu_ns\": %llu, "
               "\"ops\": %llu}",
               i ? ", " : "", mark->phase, phase_names[mark->phase], (unsigned long long)mark->start_ns,
               (unsigned long long)mark->elapsed_ns, (unsigned long long)mark->cpu_ns, (unsigned long long)mark->pairs);
    }
    fputs("], ", stdout);
}

static void print_idle(const struct result *result)
{
    print_count("rss_at_peak_bytes", result->peak_live_rss_bytes);
    print_reals("idle_ms", result->idle_time_ms, result->idle_samples);
    fputs("\"idle_rss_bytes\": [", stdout);
    for (unsigned i = 0; i < result->idle_samples; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)result->idle_rss_bytes[i]);
    fputs("], ", stdout);
}

static void print_trace(const struct trace_facts *facts)
{
    print_field("trace", opt.replay);
    print_count("trace_events", facts->events);
    print_count("trace_lost", facts->lost);
    print_count("trace_foreign_frees", facts->foreign_frees);
    print_count("trace_unreadable", facts->unreadable);
}

static void print_settings(void)
{
    print_field("workload", opt.workload->name);
    print_count("size", opt.size);
    print_count("threads", opt.threads);
    print_count("slots", opt.slots);
    print_field("backend", backend_names[opt.backend]);
    print_field("malloc_from", backend_origin(opt.backend));
    print_field("unit", opt.workload->unit);
    print_count("seed", opt.seed);
    printf("\"cpu\": %lld, \"slowdown_percent\": %g, ", (long long)opt.cpu, opt.slowdown);
}

static void print_result(const struct result *result)
{
    print_count("ops", result->ops);
    print_count("warmup_ops", result->warmup_ops);
    print_count("elapsed_ns", result->elapsed_ns);
    print_count("cpu_ns", result->cpu_ns);
    print_reals("chunk_ns", result->chunk_ns, opt.chunks);
    print_reals("chunk_cpu_ns", result->chunk_cpu_ns, opt.chunks);
    if (opt.toggle) {
        print_reals("chunk_side", result->chunk_side, opt.chunks);
        print_count("ace_firings", result->ace_firings);
    }
    print_count("minor_faults", (uint64_t)result->minor_faults);
    print_count("major_faults", (uint64_t)result->major_faults);
    print_count("context_switches", (uint64_t)result->context_switches);
    print_count("rss_start_bytes", result->rss_start_bytes);
    print_count("rss_end_bytes", result->rss_end_bytes);
    print_count("peak_rss_bytes", result->peak_rss_bytes);
    print_count("live_peak_bytes", result->live_peak_bytes);
    print_count("thp_bytes", result->thp_bytes);
}

int main(int count, char **argument)
{
    static char output[1 << 16];
    const struct trace_facts *facts = NULL;
    setvbuf(stdout, output, _IOFBF, sizeof output); /* else stdio takes its buffer from the allocator under test */
    read_arguments(count, argument);
    if (help_wanted || list_wanted) {
        help_wanted ? print_help() : print_list();
        return EXIT_SUCCESS;
    }
    if (opt.replay && workload_name) die(EXIT_USAGE, "--workload and --replay both say what to run: give one of them");
    if (opt.replay && (opt.size || opt.threads || opt.slots))
        die(EXIT_USAGE, "--size, --threads and --slots are the trace's with --replay: leave them out");
    if (opt.replay) facts = trace_load(opt.replay, opt.partial);
    choose(facts);
    const struct result *result = run(&opt);
    putchar('{');
    print_settings();
    print_result(result);
    if (opt.workload->flags & PHASED) print_marks(result);
    if (opt.workload->flags & IDLE) print_idle(result);
    if (facts) print_trace(facts);
    printf("\"checksum\": %llu}\n", (unsigned long long)result->checksum);
    return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
