/* trace.h: the format of a recorded trace, between libhaktrace.so (trace.c), which writes it, and replay.c.
 *
 * One file a process: a header, then 16-byte records in the order in which things happened. A record's place is drawn
 * from one counter, after a block was taken and before it is given back, so for each address the order of the file is
 * the true one, and a reader can name objects instead of addresses. */
#ifndef HAK_TRACE_H
#define HAK_TRACE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

/* A realloc is two records, since other threads may get the old address before the new one is known. NOTHING: a place
 * that was drawn but never written, because the process was killed in between. */
enum record_kind { NOTHING, TAKE, TAKE_ZEROED, TAKE_ALIGNED, MOVE_FROM, MOVE_TO, GIVE, RECORD_KINDS };

struct trace_header {
    char magic[8];
    uint32_t version, record_bytes;
    _Atomic uint64_t next;  /* records drawn */
    _Atomic uint64_t limit; /* records that could be written: those drawn beyond it are lost */
    _Atomic uint64_t lost;  /* records lost, also those from before the file could be opened */
    uint32_t pid, parent;
    char program[16]; /* comm of the process when the file was opened */
};

union record {
    struct {
        uint64_t address : 48, thread : 16;
        uint64_t size : 40, align_log2 : 6, kind : 3, check : 15;
    };
    uint64_t word[2];
};

static const char TRACE_MAGIC[8] = "HAKTRACE";
enum { TRACE_VERSION = 1, CHECK_SHIFT = 49 };
static_assert(sizeof(struct trace_header) == 64, "the header of a trace is 64 bytes");
static_assert(sizeof(union record) == 16, "a record of a trace is 16 bytes");

/* What the check field of a record must hold; damage passes once in 32768 times. */
static inline uint64_t record_check(union record record)
{
    record.check = 0;
    return (record.word[0] * 0x9e3779b97f4a7c15u ^ record.word[1]) * 0xd6e8feb86659fd93u >> CHECK_SHIFT;
}

#endif
