/* An address inside a block is grown. */
#include "crime.h"

int main(void) {
    char *block = take(128);
    own(realloc(block + 32, 256), 256, UNKNOWN);
    return aftermath(128);
}
