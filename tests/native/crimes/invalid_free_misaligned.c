/* An address one byte into a block is freed. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    free(block + 1);
    return aftermath(SMALL);
}
