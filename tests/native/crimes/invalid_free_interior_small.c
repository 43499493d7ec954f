/* An address inside a small block is freed. */
#include "crime.h"

int main(void) {
    char *block = take(128);
    free(block + 16);
    return aftermath(128);
}
