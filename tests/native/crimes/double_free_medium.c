/* A block of some pages is freed twice in a row. */
#include "crime.h"

int main(void) {
    char *block = take(MEDIUM);
    drop(block);
    free(block);
    return aftermath(MEDIUM);
}
