/* A small number is freed as if it were an address. */
#include "crime.h"

int main(void) {
    free((void *)0x10);
    return aftermath(SMALL);
}
