/* A block with an alignment of its own is freed twice. */
#include "crime.h"

int main(void) {
    char *block = aligned_alloc(256, 512);
    free(block);
    free(block);
    return aftermath(512);
}
