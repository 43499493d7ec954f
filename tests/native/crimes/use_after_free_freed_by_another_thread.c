/* A block freed by another thread is overwritten by an address. */
#include "crime.h"

int main(void) {
    take_and_drop(SMALL, 20);
    char *block = take(SMALL);
    disown(block);
    on_thread(thread_frees, block);
    *(char **)block = TARGET;
    return aftermath(SMALL);
}
