/* A kernel may call every page resident, as some sandboxes do: nothing is decided by that alone. This program stands
 * before libc's function. */
#include "../serve.h"
#include <sys/mman.h>
#include <sys/resource.h>

int mincore(void *address, size_t bytes, unsigned char *resident) {
    memset(resident, 1, (bytes + 4095) / 4096);
    return 0;
}

PROMISE(vectors_grow_in_place_where_all_is_called_resident) {
    enum { ROUNDS = 5, MOST = 60 * MIB };
    struct rusage warm, after;
    for (int round = 0; round < ROUNDS; round++) {
        char *vector = NULL;
        for (size_t had = 0, size = 1000; size < MOST; had = size, size += size / 2)
            memset((vector = realloc(vector, size)) + had, 1, size - had);
        free(vector);
        getrusage(RUSAGE_SELF, round == 0 ? &warm : &after);
    }
    HOLDS(after.ru_minflt - warm.ru_minflt < MOST / 4096);
}
