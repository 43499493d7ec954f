/* A C program with a C++ plugin, which it is told. It has the plugin prefer its own symbols, as php has its modules. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *object = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
    int (*plugin)(size_t) = object != NULL ? (int (*)(size_t))dlsym(object, "plugin") : NULL;
    if (plugin == NULL) return fprintf(stderr, "no plugin: %s\n", dlerror()), 3;
    return plugin(SIZE_MAX / 2 + 2);
}
