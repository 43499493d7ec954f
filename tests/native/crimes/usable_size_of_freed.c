/* The size of a freed block is asked for and written to. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    drop(block);
    memset(block, 0x41, malloc_usable_size(block));
    return aftermath(SMALL);
}
