/* Two threads that do not own a block free it, one after the other. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    disown(block);
    on_thread(thread_frees, block);
    on_thread(thread_frees, block);
    return aftermath(SMALL);
}
