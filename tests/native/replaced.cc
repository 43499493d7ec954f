/* A program that replaces one operator new and one delete: all forms that are defined by them call these (C++17
 * [new.delete], [replacement.functions]), whatever allocator is preloaded. */
#include "promise.h"
#include <new>

static int news, deletes;
static const size_t before = 64; /* bytes in front of each block: an allocator that is given one ends the program */

void *operator new(size_t size) {
    char *block = size < SIZE_MAX / 2 ? static_cast<char *>(malloc(before + size)) : nullptr;
    if (block == nullptr) throw std::bad_alloc();
    news++;
    return block + before;
}

void operator delete(void *block) noexcept {
    if (block == nullptr) return;
    deletes++;
    free(static_cast<char *>(block) - before);
}

static bool went_there(int times) {
    bool all = news == times && deletes == times;
    news = deletes = 0;
    return all;
}

PROMISE(every_form_of_new_goes_by_the_replaced_one) {
    ::operator delete(::operator new(opaque(10)));
    ::operator delete[](::operator new[](opaque(10)));
    ::operator delete(::operator new(opaque(10), std::nothrow));
    ::operator delete[](::operator new[](opaque(10), std::nothrow));
    HOLDS(went_there(4));
}

PROMISE(every_form_of_delete_goes_by_the_replaced_one) {
    ::operator delete(::operator new(opaque(10)), opaque(10));
    ::operator delete[](::operator new[](opaque(10)), opaque(10));
    ::operator delete(::operator new(opaque(10)), std::nothrow);
    ::operator delete[](::operator new[](opaque(10)), std::nothrow);
    HOLDS(went_there(4));
}

PROMISE(nothrow_new_catches_what_the_replaced_one_throws) {
    HOLDS(::operator new(opaque(SIZE_MAX), std::nothrow) == nullptr);
    HOLDS(::operator new[](opaque(SIZE_MAX), std::nothrow) == nullptr);
}

PROMISE(aligned_forms_do_not_go_there) {
    ::operator delete(::operator new(opaque(10), std::align_val_t{64}), std::align_val_t{64});
    ::operator delete[](::operator new[](opaque(10), std::align_val_t{64}), opaque(10), std::align_val_t{64});
    HOLDS(went_there(0));
}
