/* The first word of a freed block is overwritten by zero. */
#include "crime.h"

int main(void) {
    take_and_drop(SMALL, 20);
    char *block = take(SMALL), *other = take(SMALL);
    drop(other);
    drop(block);
    *(char **)block = NULL;
    return aftermath(SMALL);
}
