/* The lowest byte of a freed block's first word is changed. */
#include "crime.h"

int main(void) {
    struct pair pair = neighbours(SMALL);
    take_and_drop(SMALL, 20);
    drop(pair.low);
    *pair.low ^= 0x40;
    return aftermath(SMALL);
}
