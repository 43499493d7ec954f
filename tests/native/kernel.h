/* A program that stands before the kernel. It defines before_kernel, where an allocator's calls for memory come, whether
 * it asks the kernel itself or by libc's functions, and passes on by kernel what it lets through. */
#pragma once
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static long before_kernel(long number, long a, long b, long c, long d, long e, long f);

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    static long (*real)(long, ...);
    if (real == NULL) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c, d, e, f);
}

/* Refuses a call. */
static inline long kernel_says(int error) {
    errno = error;
    return -1;
}

long syscall(long number, ...) {
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
    long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    return before_kernel(number, a, b, c, d, e, f);
}

void *mmap(void *hint, size_t bytes, int protection, int flags, int file, off_t offset) {
    return (void *)syscall(SYS_mmap, hint, bytes, (long)protection, (long)flags, (long)file, offset);
}

int munmap(void *p, size_t bytes) { return (int)syscall(SYS_munmap, p, bytes); }
int mprotect(void *p, size_t bytes, int protection) { return (int)syscall(SYS_mprotect, p, bytes, (long)protection); }
int madvise(void *p, size_t bytes, int advice) { return (int)syscall(SYS_madvise, p, bytes, (long)advice); }
int mincore(void *p, size_t bytes, unsigned char *resident) { return (int)syscall(SYS_mincore, p, bytes, resident); }
