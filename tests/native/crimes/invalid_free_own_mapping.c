/* Memory that the program mapped itself is freed. */
#include "crime.h"

int main(void) {
    char *mapping = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    free(mapping + 4096);
    return aftermath(SMALL);
}
