/* A kernel with large pages, played before the real one: preloaded in front of an allocator, with -DPAGE=65536.
 *
 * The page size is said to be PAGE, mappings begin on a PAGE, and calls on memory behave as that kernel's do: a start
 * that is not on a page is refused, a length is rounded up to whole pages, so what lies behind is hit as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) & ~((size_t)PAGE - 1); }

static int misplaced(void *p) {
    if ((uintptr_t)p % PAGE == 0) return 0;
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

void *mmap(void *hint, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (flags & MAP_FIXED) return (void *)syscall(SYS_mmap, hint, pages(bytes), protection, flags, file, offset);
    char *p = (char *)syscall(SYS_mmap, hint, pages(bytes), protection, flags, file, offset);
    if (p == MAP_FAILED || ((uintptr_t)p & (PAGE - 1)) == 0) return p;
    syscall(SYS_munmap, p, pages(bytes));
    p = (char *)syscall(SYS_mmap, NULL, pages(bytes) + PAGE, protection, flags, file, offset);
    if (p == MAP_FAILED) return p;
    char *start = (char *)(((uintptr_t)p + PAGE - 1) & ~((uintptr_t)PAGE - 1)), *end = start + pages(bytes);
    if (start != p) syscall(SYS_munmap, p, start - p);
    if (end != p + pages(bytes) + PAGE) syscall(SYS_munmap, end, p + pages(bytes) + PAGE - end);
    return start;
}

int munmap(void *p, size_t bytes) { return misplaced(p) ? -1 : (int)syscall(SYS_munmap, p, pages(bytes)); }

int mprotect(void *p, size_t bytes, int protection) {
    return misplaced(p) ? -1 : (int)syscall(SYS_mprotect, p, pages(bytes), protection);
}

int madvise(void *p, size_t bytes, int advice) {
    return misplaced(p) ? -1 : (int)syscall(SYS_madvise, p, pages(bytes), advice);
}

int mincore(void *p, size_t bytes, unsigned char *resident) {
    if (misplaced(p)) return -1;
    unsigned char small[PAGE / 4096];
    for (size_t i = 0; i < pages(bytes) / PAGE; i++) {
        if (syscall(SYS_mincore, (char *)p + i * PAGE, (size_t)PAGE, small) != 0) return -1;
        resident[i] = 0;
        for (size_t k = 0; k < sizeof small; k++) resident[i] |= small[k];
    }
    return 0;
}
