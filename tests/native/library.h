/* What only this library has: a promise about it is untried under another. */
#pragma once
#include "promise.h"
#include "../../native/include/hakmem.h"
#include <dlfcn.h>

static inline void *library(const char *name) {
    void *function = dlsym(RTLD_DEFAULT, name);
    if (function == NULL) UNTRIED("this allocator has no such function");
    return function;
}

static inline void set_knob(const char *name, int64_t value) {
    int (*set)(const char *, int64_t) = (int (*)(const char *, int64_t))library("hak_knob_set");
    HOLDS(set(name, value) == 0);
}

static inline int64_t counter(const char *name) {
    int (*read_stats)(hak_stat_t *, int) = (int (*)(hak_stat_t *, int))library("hak_stat_read");
    static hak_stat_t rows[64];
    for (int i = read_stats(rows, 64) - 1; i >= 0; i--)
        if (strcmp(rows[i].name, name) == 0) return (int64_t)rows[i].value;
    HOLDS(!"no such counter");
    return 0;
}

/* What of the heap a block lies in. */
static inline hak_span_t span_of(const void *block) {
    size_t (*walk)(hak_span_t *, size_t) = (size_t (*)(hak_span_t *, size_t))library("hak_heap_walk");
    static hak_span_t spans[1 << 16];
    for (size_t i = walk(spans, 1 << 16); i-- > 0;)
        if ((uintptr_t)block - spans[i].address < spans[i].size) return spans[i];
    HOLDS(!"a block lies in the heap");
    return spans[0];
}
