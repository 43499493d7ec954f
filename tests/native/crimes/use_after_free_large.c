/* A freed block of megabytes is overwritten. */
#include "crime.h"

int main(void) {
    char *block = take(LARGE);
    drop(block);
    memset(block, 0x41, LARGE);
    return aftermath(LARGE);
}
