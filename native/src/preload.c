/* preload.c: the malloc family under its own names, for LD_PRELOAD. Includes the library and forwards. */

#include "hakmem.c"

#define EXPORT __attribute__((visibility("default")))

EXPORT void *malloc(size_t size) { return allocate(size); }
EXPORT void free(void *block) { release(block); }
EXPORT void *calloc(size_t count, size_t size) { return hak_calloc(count, size); }
EXPORT void *realloc(void *block, size_t size) { return hak_realloc(block, size); }
EXPORT void *aligned_alloc(size_t alignment, size_t size) { return hak_aligned_alloc(alignment, size); }
EXPORT void *memalign(size_t alignment, size_t size) { return hak_aligned_alloc(alignment, size); }
EXPORT int posix_memalign(void **block, size_t alignment, size_t size)
{
    return hak_posix_memalign(block, alignment, size);
}
EXPORT size_t malloc_usable_size(void *block) { return hak_usable_size(block); }
EXPORT int malloc_trim(size_t keep) { return (void)keep, hak_purge() != 0; }
EXPORT void cfree(void *block) { release(block); }
EXPORT void free_sized(void *block, size_t size) { (void)size, release(block); }
EXPORT void free_aligned_sized(void *block, size_t alignment, size_t size)
{
    (void)alignment, (void)size, release(block);
}

EXPORT void *reallocarray(void *block, size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total)) return refuse();
    return hak_realloc(block, total);
}

EXPORT void *valloc(size_t size) { return hak_aligned_alloc((size_t)sysconf(_SC_PAGESIZE), size); }

EXPORT void *pvalloc(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size > PTRDIFF_MAX - page) return refuse();
    return hak_aligned_alloc(page, align_up(size_max(size, 1), page));
}
