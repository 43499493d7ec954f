/* A block is freed, zeroed, and freed again: whatever marks it as free is gone. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    drop(block);
    memset(block, 0, SMALL);
    free(block);
    return aftermath(SMALL);
}
