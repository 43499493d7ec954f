/* An address in the middle of a block of many pages is freed. */
#include "crime.h"

int main(void) {
    char *block = take(MID);
    free(block + (64 << 10));
    return aftermath(MID);
}
