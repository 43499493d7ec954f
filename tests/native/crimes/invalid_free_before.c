/* An address just before a block is freed. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(SMALL);
    free(pair.high - 16);
    return aftermath(SMALL);
}
