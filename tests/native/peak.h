/* A peak of memory, and what must be left of it. */
#pragma once
#include "serve.h"

enum { PEAK = 300 * MIB, KEPT_MAX = PEAK / 10, WAIT_MS = 5000 };
static char *blocks[PEAK / 200];

static void peak_of(size_t size) {
    for (size_t i = 0; i < PEAK / size; i++) memset(blocks[i] = malloc(size), 1, size);
    for (size_t i = 0; i < PEAK / size; i++) free(blocks[i]);
}

/* So few bytes are resident in the end. The process is idle meanwhile: nothing it does may be needed for its memory to
 * go back. */
static void expect_at_most(long bytes) {
    for (int waited = 0; waited < WAIT_MS && resident_bytes() >= bytes; waited += 50) usleep(50000);
    HOLDS(resident_bytes() < bytes);
}

static void expect_given_back(long before) { expect_at_most(before + KEPT_MAX); }
