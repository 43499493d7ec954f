/* The address of a global variable is freed. */
#include "crime.h"

int main(void) {
    free(TARGET);
    return aftermath(SMALL);
}
