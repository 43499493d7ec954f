/* The first word of a freed block of some pages is overwritten by an address. */
#include "crime.h"

int main(void) {
    take_and_drop(MEDIUM, 20);
    char *block = take(MEDIUM);
    drop(block);
    *(char **)block = TARGET;
    return aftermath(MEDIUM);
}
