/* A block is freed again when thousands have left the thread's cache after it. */
#include "crime.h"

int main(void) {
    static char *others[5000];
    char *block = take(SMALL);
    for (int i = 0; i < 5000; i++) others[i] = take(SMALL);
    drop(block);
    for (int i = 0; i < 5000; i++) drop(others[i]);
    free(block);
    return aftermath(SMALL);
}
