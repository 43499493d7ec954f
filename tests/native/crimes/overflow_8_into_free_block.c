/* A write goes one word past a block, into a freed neighbour. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(SMALL);
    char *end = pair.low + malloc_usable_size(pair.low);
    drop(pair.high);
    for (int i = 0; i < 1; i++) ((char **)end)[i] = TARGET;
    return aftermath(SMALL);
}
