/* The first word of a freed block is overwritten by the address of a live block. */
#include "crime.h"

int main(void) {
    take_and_drop(SMALL, 20);
    struct pair pair = neighbours(SMALL);
    drop(pair.low);
    *(char **)pair.low = pair.high;
    return aftermath(SMALL);
}
