/* replay.c: reads a recorded trace and runs it as a workload, each of its threads on a lane of its own.
 *
 * Addresses become objects, each with a slot in one table. An event knows its turn among the events of its slot and
 * waits for it. So the order between threads is kept where a block passes from one to the other, and nowhere else: a
 * slot is used again only by the thread that freed the last object in it. What the program never freed is freed at the
 * end, so a trace can be replayed again and again. */
#define _GNU_SOURCE
#include "trace.h"
#include "verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct event {
    uint32_t slot, turn;
    uint64_t size : 40, align_log2 : 6, kind : 3; /* MOVE_TO: a realloc */
};

struct object {
    void *block;
    size_t size;
    _Atomic uint32_t turn;
};

struct place { /* of the hash table: what lives at an address */
    uint64_t address;
    uint32_t slot; /* NOWHERE: nothing now */
};

struct part { /* a lane's share of the trace */
    struct event *event;
    uint64_t events, records;
    uint32_t spare; /* the slot it freed last, see next_spare */
};

enum { NOWHERE = UINT32_MAX, THREAD_NUMBERS = UINT16_MAX + 1, NO_LANE = UINT16_MAX };

static struct {
    const char *path;
    bool partial;
    struct part part[MAX_THREADS];
    uint16_t lane_of[THREAD_NUMBERS]; /* by thread number */
    uint32_t moving[THREAD_NUMBERS];  /* by thread number: the slot between MOVE_FROM and MOVE_TO */
    struct place *place;
    uint64_t places, places_used;
    struct object *object;
    uint32_t *turns, *next_spare; /* by slot */
    uint64_t *bytes;              /* by slot */
    uint64_t live_bytes;
    struct trace_facts facts;
} trace;

/* Address space, resident as it is touched; dies where there is none. */
static void *reserve(uint64_t bytes)
{
    void *memory =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) die(EXIT_FAILURE, "no memory to read %s", trace.path);
    return memory;
}

/* Damage ends a strict replay; a partial one leaves the record out. */
static void damaged(const char *what, uint64_t record)
{
    if (!trace.partial)
        die(EXIT_USAGE, "%s: record %llu %s; record it again, or bench --replay %s --partial replays what is readable",
            trace.path, (unsigned long long)record, what, trace.path);
    trace.facts.unreadable++;
}

/* --- where objects are -------------------------------------------------------------------------------------------- */

static struct place *place_probe(uint64_t address)
{
    uint64_t mask = trace.places - 1, at = address * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (trace.place[at].address && trace.place[at].address != address) at = (at + 1) & mask;
    return &trace.place[at];
}

static void places_double(void)
{
    struct place *old = trace.place;
    uint64_t count = trace.places;
    trace.places = count ? count * 2 : 1 << 16;
    trace.place = reserve(trace.places * sizeof *old);
    for (uint64_t i = 0; i < count; i++)
        if (old[i].address) *place_probe(old[i].address) = old[i];
    if (old) munmap(old, count * sizeof *old);
}

/* The place of an address, made if it is new. */
static struct place *place_of(uint64_t address)
{
    if (trace.places_used * 2 >= trace.places) places_double();
    struct place *place = place_probe(address);
    if (!place->address) {
        *place = (struct place){address, NOWHERE};
        trace.places_used++;
    }
    return place;
}

/* --- from records to events --------------------------------------------------------------------------------------- */

static void emit(struct part *part, enum record_kind kind, uint32_t slot, union record record)
{
    part->event[part->events++] = (struct event){
        .slot = slot, .turn = trace.turns[slot]++, .size = record.size, .align_log2 = record.align_log2, .kind = kind};
    trace.live_bytes += (kind == GIVE ? 0 : record.size) - trace.bytes[slot];
    trace.bytes[slot] = kind == GIVE ? 0 : record.size;
    if (trace.live_bytes > trace.facts.live_peak_bytes) trace.facts.live_peak_bytes = trace.live_bytes;
    trace.facts.events++;
}

static void end_object(struct part *part, uint32_t slot)
{
    emit(part, GIVE, slot, (union record){.size = 0});
    trace.next_spare[slot] = part->spare;
    part->spare = slot;
}

static uint32_t begin_object(struct part *part, union record record)
{
    uint32_t slot = part->spare;
    if (slot != NOWHERE) part->spare = trace.next_spare[slot];
    else if (trace.facts.slots == NOWHERE) die(EXIT_USAGE, "%s: too many live objects", trace.path);
    else slot = (uint32_t)trace.facts.slots++;
    emit(part, record.kind == MOVE_TO ? TAKE : record.kind, slot, record);
    return slot;
}

/* The block leaves its place. Result: its slot; NOWHERE, and counted, for a block that the trace did not see taken: a
 * forked child's from its parent, or one from before the recording. */
static uint32_t leave(struct place *place)
{
    uint32_t slot = place->slot;
    trace.facts.foreign_frees += slot == NOWHERE;
    place->slot = NOWHERE;
    return slot;
}

static void read_record(union record record, uint64_t number)
{
    struct part *part = &trace.part[trace.lane_of[record.thread]];
    struct place *place = place_of(record.address);
    uint32_t *moving = &trace.moving[record.thread], slot;
    switch (record.kind) {
    case MOVE_FROM: /* of one that it began before nothing more is known */
        if (*moving != NOWHERE) end_object(part, *moving);
        *moving = leave(place);
        return;
    case GIVE:
        if ((slot = leave(place)) != NOWHERE) end_object(part, slot);
        return;
    }
    if (place->slot != NOWHERE) {
        damaged("takes a block that is already taken", number);
        end_object(part, place->slot);
    }
    if (record.kind == MOVE_TO && *moving != NOWHERE) emit(part, MOVE_TO, place->slot = *moving, record);
    else place->slot = begin_object(part, record);
    if (record.kind == MOVE_TO) *moving = NOWHERE;
}

/* What the program left behind is freed by the first thread, as if at its exit. */
static void free_the_rest(void)
{
    for (uint64_t i = 0; i < trace.places; i++)
        if (trace.place[i].address && trace.place[i].slot != NOWHERE) end_object(&trace.part[0], trace.place[i].slot);
    for (unsigned thread = 0; thread < THREAD_NUMBERS; thread++)
        if (trace.moving[thread] != NOWHERE) end_object(&trace.part[0], trace.moving[thread]);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static bool readable(union record record)
{
    return record.kind > NOTHING && record.kind < RECORD_KINDS && record.address &&
           record.check == record_check(record);
}

/* The mapped file; *records: how many it holds. */
static const struct trace_header *file_open(uint64_t *records)
{
    int file = open(trace.path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status)) die(EXIT_USAGE, "--replay %s: %s", trace.path, strerror(errno));
    size_t length = (size_t)status.st_size;
    const struct trace_header *header =
        length < sizeof *header ? MAP_FAILED : mmap(NULL, length, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (header == MAP_FAILED || memcmp(header->magic, TRACE_MAGIC, sizeof TRACE_MAGIC))
        die(EXIT_USAGE, "--replay %s: not a trace, record one with libhaktrace.so", trace.path);
    if (header->version != TRACE_VERSION || header->record_bytes != sizeof(union record))
        die(EXIT_USAGE, "--replay %s: version %u of the format, this bench reads %d", trace.path, header->version,
            TRACE_VERSION);
    uint64_t present = (length - sizeof *header) / sizeof(union record);
    *records = header->next < header->limit ? header->next : header->limit;
    if (present < *records) {
        damaged("is missing, the file ends before it", present + 1);
        trace.facts.unreadable = *records - present;
        *records = present;
    }
    return header;
}

/* Threads get lanes as they appear. Each lane gets room for its events, two for a record that takes a block which was
 * taken already; the first one gets the rest behind them, since it also frees what is left. */
static void plan_lanes(const union record *record, uint64_t records)
{
    uint64_t threads = 0;
    memset(trace.lane_of, 0xff, sizeof trace.lane_of);
    memset(trace.moving, 0xff, sizeof trace.moving);
    for (uint64_t i = 0; i < records; i++) {
        if (!readable(record[i])) {
            damaged(record[i].kind == NOTHING ? "was never finished" : "is damaged", i + 1);
            continue;
        }
        uint16_t *lane = &trace.lane_of[record[i].thread];
        if (*lane == NO_LANE) *lane = (uint16_t)(threads++ % MAX_THREADS);
        trace.part[*lane].records++;
    }
    trace.facts.threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    struct event *room = reserve(3 * records * sizeof *room);
    for (uint64_t lane = trace.facts.threads; lane-- > 0; room += 2 * trace.part[lane].records) {
        trace.part[lane].event = room;
        trace.part[lane].spare = NOWHERE;
    }
}

const struct trace_facts *trace_load(const char *path, bool partial)
{
    uint64_t records;
    trace.path = path;
    trace.partial = partial;
    const struct trace_header *header = file_open(&records);
    const union record *record = (const union record *)(header + 1);
    trace.facts.lost = header->lost;
    trace.turns = reserve(records * sizeof *trace.turns);
    trace.next_spare = reserve(records * sizeof *trace.next_spare);
    trace.bytes = reserve(records * sizeof *trace.bytes);
    plan_lanes(record, records);
    for (uint64_t i = 0; i < records; i++)
        if (readable(record[i])) read_record(record[i], i + 1);
    free_the_rest();
    if (!trace.facts.events) die(EXIT_USAGE, "--replay %s: holds no allocation", path);
    munmap(trace.place, trace.places * sizeof *trace.place);
    trace.object = map_zeroed(trace.facts.slots * sizeof *trace.object);
    return &trace.facts;
}

/* --- the workload ------------------------------------------------------------------------------------------------- */

INLINE void play(enum backend on, const struct event *event, struct object *object)
{
    size_t size = event->size, kept = 0;
    switch (event->kind) {
    case GIVE:
        give(on, object->block, object->size);
        return;
    case MOVE_TO:
        kept = object->size;
        object->block = resize(on, object->block, kept, size);
        break;
    case TAKE_ZEROED:
        object->block = take_zeroed(on, size);
        break;
    case TAKE_ALIGNED:
        object->block = take_aligned(on, (size_t)1 << event->align_log2, size);
        break;
    default:
        object->block = take(on, size);
    }
    object->size = size;
    if (size > kept) touch_pages((char *)object->block + kept, size - kept, kept);
}

/* Each iteration is one pass over the trace. */
INLINE uint64_t replay(enum backend on, struct lane *lane, uint64_t n)
{
    const struct part *part = &trace.part[lane->id];
    unsigned spins = 0;
    if (lane->id == 0) lane->live_peak_bytes = trace.facts.live_peak_bytes;
    for (uint64_t k = 0; k < n; k++) {
        for (const struct event *event = part->event; event < part->event + part->events; event++) {
            struct object *object = &trace.object[event->slot];
            while (atomic_load_explicit(&object->turn, memory_order_acquire) != event->turn) relax(&spins);
            play(on, event, object);
            atomic_store_explicit(&object->turn, event->turn + 1, memory_order_release);
        }
        if (trace.facts.threads > 1) pthread_barrier_wait(&lane->rig->round);
        for (uint64_t slot = lane->id; slot < trace.facts.slots; slot += trace.facts.threads)
            trace.object[slot].turn = 0;
        if (trace.facts.threads > 1) pthread_barrier_wait(&lane->rig->round);
    }
    return n * part->events;
}

static uint64_t replay_malloc(struct lane *lane, uint64_t n) { return replay(ON_MALLOC, lane, n); }
#ifdef HAK_BENCH_DIRECT
static uint64_t replay_direct(struct lane *lane, uint64_t n) { return replay(ON_DIRECT, lane, n); }
#else
#define replay_direct NULL
#endif

const struct workload replay_workload = {
    .name = "replay",
    .stresses = "what a program did",
    .unit = "call",
    .shape = {1, 1, 1},
    .iterations = 5,
    .flags = REMOTE | TOGETHER,
    .body = {[ON_MALLOC] = replay_malloc, [ON_DIRECT] = replay_direct},
};
