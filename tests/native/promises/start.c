/* Promise 9: a process starts and works where almost everything is missing. */
#include "../serve.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

extern char **environ;

PROMISE(it_works) {
    serve_every_size(NULL);
    serve_in_threads();
}

PROMISE(it_starts_without_an_environment) {
    char preload[4096] = "LD_PRELOAD=";
    const char *library = getenv("LD_PRELOAD");
    strncat(preload, library ? library : "", sizeof preload - 12);
    keep_in_new_process("it_works", NULL, (char *[]){library ? preload : NULL, NULL});
}

static void allocate(void) {
    void *volatile block = malloc(80);
    free(block);
}

/* These take the place of libc's for the allocator too, as those of a library preloaded beside it (libfaketime) do. */
ssize_t getrandom(void *to, size_t bytes, unsigned flags) {
    allocate();
    return syscall(SYS_getrandom, to, bytes, flags);
}

int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *cores) {
    allocate();
    return syscall(SYS_sched_getaffinity, process, bytes, cores) < 0 ? -1 : 0;
}

int getrlimit(__rlimit_resource_t resource, struct rlimit *limit) {
    allocate();
    return (int)syscall(SYS_prlimit64, 0, resource, NULL, limit);
}

PROMISE(it_starts_where_what_it_asks_allocates) {
    char byte;
    cpu_set_t cores;
    struct rlimit limit;
    HOLDS(getrandom(&byte, 1, 0) == 1);
    HOLDS(sched_getaffinity(0, sizeof cores, &cores) == 0);
    HOLDS(getrlimit(RLIMIT_AS, &limit) == 0);
    serve_every_size(NULL);
}

/* Whatever transparent_hugepage/enabled says, a small program's tables get no page of 2 MiB. */
PROMISE(it_starts_without_huge_pages) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512], what[5];
    unsigned long from, to;
    int may = 0, writable = 0;
    if (maps == NULL) UNTRIED("no smaps");
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx %4s", &from, &to, what) == 3) writable = what[1] == 'w' && to - from >= 4 * MIB;
        if (writable && strncmp(line, "VmFlags:", 8) == 0) may |= strstr(line, " nh") == NULL;
    }
    fclose(maps);
    HOLDS(!may);
}

static void hide_proc(void) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/proc", "tmpfs", 0, NULL) != 0)
        UNTRIED("hiding /proc takes privileges");
}

PROMISE(it_starts_without_proc) {
    pid_t probe = fork();
    if (probe == 0) {
        hide_proc();
        _exit(0);
    }
    int status;
    waitpid(probe, &status, 0);
    if (WEXITSTATUS(status) == EXIT_UNTRIED) UNTRIED("hiding /proc takes privileges");
    keep_in_new_process("it_works", hide_proc, environ);
}

static void close_all(void) {
    for (int descriptor = 0; descriptor < 64; descriptor++) close(descriptor);
}

STEP(no_descriptor_is_taken) {
    it_works();
    for (int descriptor = 0; descriptor < 64; descriptor++) HOLDS(fcntl(descriptor, F_GETFD) == -1);
}

PROMISE(it_starts_with_closed_descriptors_and_takes_none) {
    keep_in_new_process("no_descriptor_is_taken", close_all, environ);
}

static void limit_to_48_mib(void) {
    HOLDS(setrlimit(RLIMIT_AS, &(struct rlimit){48 * MIB, 48 * MIB}) == 0);
}

PROMISE(every_size_is_served) { serve_every_size(NULL); }

PROMISE(it_starts_in_48_mib_of_address_space) {
    keep_in_new_process("every_size_is_served", limit_to_48_mib, environ);
}

PROMISE(a_child_that_takes_little_has_one_thread_whatever_its_parent_freed) {
    static char *blocks[3000];
    for (int i = 0; i < 100; i++) memset(blocks[i] = malloc(MIB), 1, MIB);
    for (int i = 0; i < 100; i++) free(blocks[i]);
    pid_t child = fork();
    if (child == 0) {
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 3000; i++) blocks[i] = malloc(100);
            for (int i = 0; i < 3000; i++) free(blocks[i]);
        }
        HOLDS(threads_here() == 1);
        _exit(0);
    }
    wait_for(child);
}

/* glibc allocates while it holds the lock under which it reads the usual size of a stack. */
PROMISE(libc_may_allocate_while_it_copies_the_attributes_of_threads) {
    pthread_attr_t attributes;
    cpu_set_t cores;
    alarm(20);
    HOLDS(sched_getaffinity(0, sizeof cores, &cores) == 0 && pthread_attr_init(&attributes) == 0);
    HOLDS(pthread_attr_setaffinity_np(&attributes, sizeof cores, &cores) == 0);
    HOLDS(pthread_setattr_default_np(&attributes) == 0);
    for (int i = 0; i < 200000; i++) HOLDS(pthread_getattr_default_np(&attributes) == 0); /* their lists stay */
}
