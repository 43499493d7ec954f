/* An address some pages into a block is freed. */
#include "crime.h"

int main(void) {
    char *block = take(MEDIUM);
    free(block + 4096);
    return aftermath(MEDIUM);
}
