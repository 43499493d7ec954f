/* The address of a local variable is freed. */
#include "crime.h"

int main(void) {
    char local[256] __attribute__((aligned(64)));
    free(memset(local + 64, 0, 64));
    return aftermath(SMALL);
}
