/* Another thread frees a block, then its owner does. */
#include "crime.h"

int main(void) {
    char *block = take(SMALL);
    disown(block);
    on_thread(thread_frees, block);
    free(block);
    return aftermath(SMALL);
}
