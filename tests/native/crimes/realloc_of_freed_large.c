/* A freed block of megabytes is grown. */
#include "crime.h"

int main(void) {
    char *block = take(LARGE);
    drop(block);
    own(realloc(block, 2 * LARGE), 2 * LARGE, UNKNOWN);
    return aftermath(LARGE);
}
