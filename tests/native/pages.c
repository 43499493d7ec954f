/* A kernel with large pages, played before the real one: preloaded in front of an allocator, with -DPAGE=65536.
 *
 * The page size is said to be PAGE, mappings begin on a PAGE, and calls on memory behave as that kernel's do: a start
 * that is not on a page is refused, a length is rounded up to whole pages, so what lies behind is hit as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    static long (*real)(long, ...);
    if (real == NULL) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c, d, e, f);
}

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) & ~((size_t)PAGE - 1); }

static int misplaced(long p) {
    if (p % PAGE == 0) return 0;
    errno = EINVAL;
    return 1;
}

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

/* Through which all others below go, and the allocator, which asks the kernel past libc. */
long syscall(long number, ...) {
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
    long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_mmap) return map(a, b, c, d, e, f);
    bool looks = number == SYS_mincore, changes = number == SYS_munmap || number == SYS_mprotect || number == SYS_madvise;
    if (!looks && !changes) return kernel(number, a, b, c, d, e, f);
    if (misplaced(a)) return -1;
    return looks ? look(a, b, (unsigned char *)c) : kernel(number, a, pages(b), c, d, e, f);
}

void *mmap(void *hint, size_t bytes, int protection, int flags, int file, off_t offset) {
    return (void *)map((long)hint, bytes, protection, flags, file, offset);
}

int munmap(void *p, size_t bytes) { return (int)syscall(SYS_munmap, p, bytes); }
int mprotect(void *p, size_t bytes, int protection) { return (int)syscall(SYS_mprotect, p, bytes, (long)protection); }
int madvise(void *p, size_t bytes, int advice) { return (int)syscall(SYS_madvise, p, bytes, (long)advice); }
int mincore(void *p, size_t bytes, unsigned char *resident) { return (int)syscall(SYS_mincore, p, bytes, resident); }
