/* A freed block is grown. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    drop(block);
    own(realloc(block, 2 * SMALL), 2 * SMALL, UNKNOWN);
    return aftermath(SMALL);
}
