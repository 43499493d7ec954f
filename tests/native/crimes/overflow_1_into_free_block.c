/* A write goes one byte past a block, into a freed neighbour. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(SMALL);
    char *end = pair.low + malloc_usable_size(pair.low);
    drop(pair.high);
    memset(end, 0x41, 1);
    return aftermath(SMALL);
}
