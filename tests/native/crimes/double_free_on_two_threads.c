/* The owner frees a block, then another thread frees it again. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    drop(block);
    on_thread(thread_frees, block);
    return aftermath(SMALL);
}
