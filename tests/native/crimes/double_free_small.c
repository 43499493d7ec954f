/* A block is freed twice in a row. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    drop(block);
    free(block);
    return aftermath(SMALL);
}
