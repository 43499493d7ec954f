/* machine.c: memory for the bench itself, what the kernel says of this process, and how it dies. */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void die(int status, const char *format, ...)
{
    va_list arguments;
    fflush(stdout);
    fputs("bench: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    _exit(status);
}

void *map_zeroed(size_t size)
{
    void *memory =
        mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        die(EXIT_FAILURE, "no memory for %zu bytes of the bench's own arrays: use fewer --slots or --threads", size);
    return memory;
}

/* The whole text of a small /proc file, valid until the next call; "" where there is none. */
static const char *read_proc(const char *path)
{
    static char text[16384];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[length > 0 ? length : 0] = '\0';
    return text;
}

uint64_t proc_bytes(const char *path, const char *key)
{
    const char *line = strstr(read_proc(path), key);
    return line ? strtoull(line + strlen(key), NULL, 10) * 1024 : 0;
}

uint64_t resident_bytes(void)
{
    const char *pages = strchr(read_proc("/proc/self/statm"), ' ');
    return pages ? strtoull(pages, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* A kernel that refuses leaves the mark as it was. */
void reset_peak(void)
{
    int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t written = write(file, "5", 1);
    (void)written;
    close(file);
}
