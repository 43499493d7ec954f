/* An address that no machine of this kind has is freed. */
#include "crime.h"

int main(void) {
    free((void *)0x4141414141414140);
    return aftermath(SMALL);
}
