/* Promise 13: the allocator never asks for executable memory: every executable mapping is a file's or the kernel's. */
#include "../serve.h"

PROMISE(no_anonymous_memory_is_executable) {
    serve_every_size(NULL);
    serve_in_threads();
    char line[512], permissions[8], path[400];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        path[0] = '\0';
        HOLDS(sscanf(line, "%*s %7s %*s %*s %*s %399s", permissions, path) >= 1);
        HOLDS(permissions[2] != 'x' || path[0] == '/' || strncmp(path, "[v", 2) == 0);
        HOLDS(permissions[1] != 'w' || permissions[2] != 'x');
    }
    fclose(maps);
}
