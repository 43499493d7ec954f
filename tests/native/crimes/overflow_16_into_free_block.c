/* A write goes two words past a block, into a freed neighbour. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(SMALL);
    char *end = pair.low + malloc_usable_size(pair.low);
    drop(pair.high);
    for (int i = 0; i < 2; i++) ((char **)end)[i] = TARGET;
    return aftermath(SMALL);
}
