/* A C++ plugin of a C program: the C++ library is in its scope alone. `plugin` 0: new failed as it should. */
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" int plugin(std::size_t hopeless) {
    try {
        ::operator delete(::operator new(hopeless));
        return 1;
    } catch (const std::bad_alloc &) {
    }
    if (::operator new[](hopeless, std::nothrow) != nullptr) return 2;
    int *one = new int(7), *some = new int[100];
    delete[] some;
    delete one;
    std::free(strdup("taken by libc, freed here"));
    return 0;
}
