/* A global is freed whose surroundings look like a block of libc's: a size before and behind it. */
#include "crime.h"

int main(void) {
    size_t *words = (size_t *)TARGET;
    words[-1] = words[7] = 0x41;
    words[6] = 0x40;
    free(words);
    return aftermath(SMALL);
}
