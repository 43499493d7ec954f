/* What many promises need: work that touches every pool, and a look at this process from outside the allocator. */
#ifndef SERVE_H
#define SERVE_H
#include "promise.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* The same numbers in each process. */
static inline size_t next_random(void) {
    static uint64_t state = 1;
    return (state = state * UINT64_C(6364136223846793005) + 1442695040888963407u) >> 33;
}

/* The order of what pointers lead to, for qsort. */
static inline int by_address(const void *one, const void *two) {
    const char *a = *(char *const *)one, *b = *(char *const *)two;
    return (a > b) - (a < b);
}

/* One block of every size up to 2 MiB, touched, grown, and freed; a little of everything an allocator does. */
static inline void *serve_every_size(void *unused) {
    (void)unused;
    for (size_t size = 1; size <= 2 * MIB; size = size * 3 / 2 + 1) {
        unsigned char *block = malloc(size), *zeroed = calloc(1, size);
        HOLDS(block != NULL && zeroed != NULL && zeroed[0] == 0 && zeroed[size - 1] == 0);
        memset(block, 1, size);
        HOLDS((block = realloc(block, size * 2)) != NULL && block[size - 1] == 1);
        free(zeroed);
        free(block);
    }
    return NULL;
}

static inline void serve_in_threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) HOLDS(pthread_create(&threads[i], NULL, serve_every_size, NULL) == 0);
    for (int i = 0; i < 4; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
}

/* The n-th number of /proc/self/statm, in bytes, read without stdio or the allocator. */
static inline long statm_bytes(int n) {
    char text[128] = "", *at = text;
    int statm = open("/proc/self/statm", O_RDONLY);
    HOLDS(statm >= 0 && read(statm, text, sizeof text - 1) > 0);
    close(statm);
    while (n-- > 0) at = strchr(at, ' ') + 1;
    return strtol(at, NULL, 10) * sysconf(_SC_PAGESIZE);
}

static inline long mapped_bytes(void) { return statm_bytes(0); }
static inline long resident_bytes(void) { return statm_bytes(1); }

/* The most that were resident. The kernel's other account (ru_maxrss) starts from the parent's at the fork. */
static inline long peak_bytes(void) {
    char text[4096] = "";
    int status = open("/proc/self/status", O_RDONLY);
    HOLDS(status >= 0 && read(status, text, sizeof text - 1) > 0);
    close(status);
    return strtol(strstr(text, "VmHWM:") + 6, NULL, 10) * KIB;
}

static inline int threads_here(void) {
    int count = -2; /* . and .. */
    DIR *tasks = opendir("/proc/self/task");
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count;
}

/* Mappings of this process, of which the kernel allows 65530. */
static inline int mappings(void) {
    static char text[64 * KIB];
    int lines = 0, maps = open("/proc/self/maps", O_RDONLY);
    for (ssize_t length; (length = read(maps, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < length; i++) lines += text[i] == '\n';
    close(maps);
    return lines;
}

static inline void wait_for(pid_t child) {
    int status;
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Runs another promise of this program in a fresh process; in the child `prepare` has run just before exec. */
static inline void keep_in_new_process(const char *promise, void (*prepare)(void), char *const environment[]) {
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        if (prepare) prepare();
        execve(program_invocation_name, (char *[]){program_invocation_name, (char *)promise, NULL}, environment);
        _exit(127);
    }
    wait_for(child);
}
#endif
