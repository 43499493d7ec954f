/* A program that runs with more rights than its user has takes no settings from that user: the kernel says so, which
 * this program plays before libc's function. */
#include "../library.h"
#include "../serve.h"
#include <sys/auxv.h>

extern char **environ;

unsigned long getauxval(unsigned long type) {
    unsigned long (*real)(unsigned long) = (unsigned long (*)(unsigned long))dlsym(RTLD_NEXT, "getauxval");
    return type == AT_SECURE ? 1 : real(type);
}

STEP(nothing_was_set) {
    const char *(*profile)(void) = (const char *(*)(void))library("hak_profile");
    HOLDS(strcmp(profile(), "default") == 0);
}

PROMISE(settings_of_whoever_starts_it_are_not_taken) {
    library("hak_profile");
    setenv("HAKMEM_PROFILE", "lean", 1);
    setenv("HAKMEM_DEPOT_BYTES", "so much that it would be reported", 1);
    setenv("HAKMEM_SS_OS_STATS", "1", 1);
    keep_in_new_process("nothing_was_set", NULL, environ);
}
