/* A write goes two words past a block of some pages. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(MEDIUM);
    memset(pair.low + malloc_usable_size(pair.low), 0x41, 16);
    return aftermath(MEDIUM);
}
