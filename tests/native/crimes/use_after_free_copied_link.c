/* The first word of the block freed last is copied over that of one freed before: a link that is genuine, elsewhere. */
#include "crime.h"

int main(void) {
    take_and_drop(SMALL, 20);
    char *block = take(SMALL), *other = take(SMALL), *third = take(SMALL);
    drop(third);
    drop(other);
    drop(block);
    *(char **)third = *(char **)block;
    return aftermath(SMALL);
}
