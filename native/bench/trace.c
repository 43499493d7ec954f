#include "bench.h"
const struct workload replay_workload;
const struct trace_facts *trace_load(const char *path, bool partial)
{
    (void)partial;
    die(2, "%s", path);
}
