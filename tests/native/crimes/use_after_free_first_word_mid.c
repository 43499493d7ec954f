/* The first word of a freed block of many pages is overwritten by an address. */
#include "crime.h"

int main(void) {
    take_and_drop(MID, 20);
    char *block = take(MID);
    drop(block);
    *(char **)block = TARGET;
    return aftermath(MID);
}
