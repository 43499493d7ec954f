/* Every word of a freed block is overwritten by an address. */
#include "crime.h"

int main(void) {
    take_and_drop(SMALL, 20);
    char *block = take(SMALL);
    drop(block);
    for (int i = 0; i < SMALL / 8; i++) ((char **)block)[i] = TARGET;
    return aftermath(SMALL);
}
