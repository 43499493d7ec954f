/* A C program with a C++ plugin, which it is told. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *object = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*plugin)(size_t) = object != NULL ? (int (*)(size_t))dlsym(object, "plugin") : NULL;
    if (plugin == NULL) return fprintf(stderr, "no plugin: %s\n", dlerror()), 3;
    return plugin(SIZE_MAX / 2 + 2);
}
