/* A block of a thread that has ended is freed twice. */
#include "crime.h"

int main(void) {
    size_t size = SMALL;
    char *block = on_thread(thread_takes, &size);
    drop(block);
    free(block);
    return aftermath(SMALL);
}
