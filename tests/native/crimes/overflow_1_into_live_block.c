/* A write goes one byte past a block, into a live neighbour. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(SMALL);
    memset(pair.low + malloc_usable_size(pair.low), 0x41, 1);
    return aftermath(SMALL);
}
