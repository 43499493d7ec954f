/* The address behind a block, no block's start, is freed. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(112);
    free(pair.low + 128);
    return aftermath(112);
}
