/* A block of many pages is freed twice in a row. */
#include "crime.h"

int main(void) {
    char *block = take(MID);
    drop(block);
    free(block);
    return aftermath(MID);
}
