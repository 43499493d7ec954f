/* An address inside a large block that was freed before is freed. */
#include "crime.h"

int main(void) {
    char *block = take(LARGE);
    drop(block);
    free(block + (64 << 10));
    return aftermath(LARGE);
}
