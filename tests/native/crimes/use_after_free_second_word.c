/* The second word of a freed block is overwritten by an address. */
#include "crime.h"

int main(void) {
    take_and_drop(SMALL, 20);
    char *block = take(SMALL);
    drop(block);
    ((char **)block)[1] = TARGET;
    return aftermath(SMALL);
}
