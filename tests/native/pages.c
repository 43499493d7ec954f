/* A kernel with large pages, played before the real one: preloaded in front of an allocator, with -DPAGE=65536.
 *
 * The page size is said to be PAGE, mappings begin on a PAGE, and calls on memory behave as that kernel's do: a start
 * that is not on a page is refused, a length is rounded up to whole pages, so what lies behind is hit as well. */
#define _GNU_SOURCE
#include "kernel.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <unistd.h>

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) & ~((size_t)PAGE - 1); }

long sysconf(int name) {
    static long (*real)(int);
    if (name == _SC_PAGESIZE) return PAGE;
    if (real == NULL) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return real(name);
}

unsigned long getauxval(unsigned long type) {
    static unsigned long (*real)(unsigned long);
    if (type == AT_PAGESZ) return PAGE;
    if (real == NULL) real = (unsigned long (*)(unsigned long))dlsym(RTLD_NEXT, "getauxval");
    return real(type);
}

static long map(long hint, size_t bytes, long protection, long flags, long file, long offset) {
    if (flags & MAP_FIXED) return kernel(SYS_mmap, hint, pages(bytes), protection, flags, file, offset);
    long p = kernel(SYS_mmap, hint, pages(bytes), protection, flags, file, offset);
    if (p == -1 || p % PAGE == 0) return p;
    kernel(SYS_munmap, p, pages(bytes), 0, 0, 0, 0);
    p = kernel(SYS_mmap, 0, pages(bytes) + PAGE, protection, flags, file, offset);
    if (p == -1) return p;
    long start = (p + PAGE - 1) & ~((long)PAGE - 1), end = start + pages(bytes), rest = p + PAGE - start;
    if (start != p) kernel(SYS_munmap, p, start - p, 0, 0, 0, 0);
    if (rest != 0) kernel(SYS_munmap, end, rest, 0, 0, 0, 0);
    return start;
}

static long look(long p, size_t bytes, unsigned char *resident) {
    unsigned char small[PAGE / 4096];
    for (size_t i = 0; i < pages(bytes) / PAGE; i++) {
        if (kernel(SYS_mincore, p + i * PAGE, PAGE, (long)small, 0, 0, 0) != 0) return -1;
        resident[i] = 0;
        for (size_t k = 0; k < sizeof small; k++) resident[i] |= small[k];
    }
    return 0;
}

static long before_kernel(long number, long a, long b, long c, long d, long e, long f) {
    if (number == SYS_mmap) return map(a, b, c, d, e, f);
    bool looks = number == SYS_mincore, changes = number == SYS_munmap || number == SYS_mprotect || number == SYS_madvise;
    if (!looks && !changes) return kernel(number, a, b, c, d, e, f);
    if (a % PAGE != 0) return kernel_says(EINVAL);
    return looks ? look(a, b, (unsigned char *)c) : kernel(number, a, pages(b), c, d, e, f);
}
