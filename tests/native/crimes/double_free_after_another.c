/* A block is freed again after one other of its size was freed. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL), *other = take(SMALL);
    drop(block);
    drop(other);
    free(block);
    return aftermath(SMALL);
}
