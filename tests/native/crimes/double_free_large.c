/* A block of megabytes is freed twice in a row. */
#include "crime.h"

int main(void) {
    char *block = take(LARGE);
    drop(block);
    free(block);
    return aftermath(LARGE);
}
