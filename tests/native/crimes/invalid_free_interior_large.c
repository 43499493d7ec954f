/* An address a megabyte into a large block is freed. */
#include "crime.h"

int main(void) {
    char *block = take(LARGE);
    free(block + (1 << 20));
    return aftermath(LARGE);
}
