/* A block is freed again after a hundred others of its size were freed. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL), *others[100];
    for (int i = 0; i < 100; i++) others[i] = take(SMALL);
    drop(block);
    for (int i = 0; i < 100; i++) drop(others[i]);
    free(block);
    return aftermath(SMALL);
}
