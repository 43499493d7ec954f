/* A write goes one word before a block, into a live neighbour. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(SMALL);
    memset(pair.high - 8, 0x41, 8);
    return aftermath(SMALL);
}
