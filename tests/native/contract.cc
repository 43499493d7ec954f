/* The contract of operator new and delete in all their forms (C++17 [new.delete]), whoever implements them. */
#include "promise.h"
#include <malloc.h>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

static const size_t hopeless = SIZE_MAX / 2 + 2;

template <size_t alignment> struct alignas(alignment) Overaligned {
    char bytes[alignment];
};

static bool is_aligned(const void *block, size_t alignment) { return (uintptr_t)block % alignment == 0; }

template <class Call> static bool throws_bad_alloc(Call call) {
    try {
        call();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

PROMISE(new_serves_every_size_and_zero) {
    for (size_t size = 0; size <= 20000; size += 7) {
        void *one = ::operator new(size), *two = ::operator new[](size);
        HOLDS(one != nullptr && two != nullptr && one != two);
        HOLDS(size < __STDCPP_DEFAULT_NEW_ALIGNMENT__ || is_aligned(one, __STDCPP_DEFAULT_NEW_ALIGNMENT__));
        memset(one, 1, size);
        memset(two, 2, size);
        ::operator delete(one);
        ::operator delete[](two);
    }
}

PROMISE(sized_delete_works) {
    for (size_t size = 0; size <= 8 << 20; size = size * 2 + 1) {
        ::operator delete(::operator new(size), size);
        ::operator delete[](::operator new[](size), size);
    }
    ::operator delete(nullptr, (size_t)0);
}

PROMISE(aligned_new_and_delete_work_in_every_form) {
    for (size_t alignment = 8; alignment <= 1 << 20; alignment *= 2) {
        std::align_val_t align{alignment};
        void *blocks[] = {::operator new(100, align), ::operator new[](alignment, align),
                          ::operator new(3 * alignment, align, std::nothrow),
                          ::operator new[](1, align, std::nothrow)};
        for (void *block : blocks) HOLDS(block != nullptr && is_aligned(block, alignment));
        ::operator delete(blocks[0], align);
        ::operator delete[](blocks[1], alignment, align);
        ::operator delete(blocks[2], align, std::nothrow);
        ::operator delete[](blocks[3], align, std::nothrow);
    }
}

PROMISE(overaligned_objects_are_aligned) {
    std::vector<std::unique_ptr<Overaligned<64>>> lines;
    std::vector<std::unique_ptr<Overaligned<256>>> many;
    for (int i = 0; i < 300; i++) {
        lines.emplace_back(new Overaligned<64>);
        many.emplace_back(new Overaligned<256>);
        HOLDS(is_aligned(lines.back().get(), 64) && is_aligned(many.back().get(), 256));
    }
    std::unique_ptr<Overaligned<4096>[]> pages(new Overaligned<4096>[5]);
    HOLDS(is_aligned(pages.get(), 4096));
}

PROMISE(new_throws_bad_alloc) {
    size_t size = opaque(hopeless);
    HOLDS(throws_bad_alloc([=] { return ::operator new(size); }));
    HOLDS(throws_bad_alloc([=] { return ::operator new[](size); }));
    HOLDS(throws_bad_alloc([=] { return ::operator new(size, std::align_val_t{64}); }));
    HOLDS(throws_bad_alloc([=] { return ::operator new[](size, std::align_val_t{4096}); }));
}

PROMISE(nothrow_new_gives_null) {
    size_t size = opaque(hopeless);
    HOLDS(::operator new(size, std::nothrow) == nullptr);
    HOLDS(::operator new[](size, std::nothrow) == nullptr);
    HOLDS(::operator new(size, std::align_val_t{64}, std::nothrow) == nullptr);
    HOLDS(::operator new[](size, std::align_val_t{64}, std::nothrow) == nullptr);
    void *block = ::operator new(100, std::nothrow);
    HOLDS(block != nullptr);
    ::operator delete(block, std::nothrow);
}

static int handler_calls;

PROMISE(new_handler_is_called_until_it_gives_up) {
    std::set_new_handler([] {
        if (++handler_calls == 3) std::set_new_handler(nullptr);
    });
    HOLDS(throws_bad_alloc([] { return ::operator new(opaque(hopeless)); }));
    HOLDS(handler_calls == 3);
}

PROMISE(aligned_new_calls_the_new_handler) {
    std::set_new_handler([] {
        if (++handler_calls == 3) std::set_new_handler(nullptr);
    });
    HOLDS(throws_bad_alloc([] { return ::operator new(opaque(hopeless), std::align_val_t{64}); }));
    HOLDS(handler_calls == 3);
}

PROMISE(nothrow_new_swallows_what_the_handler_throws) {
    std::set_new_handler([] {
        handler_calls++;
        throw std::bad_alloc();
    });
    HOLDS(::operator new(opaque(hopeless), std::nothrow) == nullptr && handler_calls == 1);
    HOLDS(::operator new[](opaque(hopeless), std::nothrow) == nullptr && handler_calls == 2);
    HOLDS(throws_bad_alloc([] { return ::operator new(opaque(hopeless)); }) && handler_calls == 3);
    std::set_new_handler(nullptr);
}

PROMISE(what_the_handler_throws_reaches_the_caller) {
    struct Custom : std::bad_alloc {};
    std::set_new_handler([] { throw Custom(); });
    bool caught = false;
    try {
        HOLDS(::operator new(opaque(hopeless)) == nullptr);
    } catch (const Custom &) {
        caught = true;
    }
    HOLDS(caught);
}

PROMISE(delete_of_null_does_nothing) {
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
    ::operator delete(nullptr, std::nothrow);
    ::operator delete(nullptr, std::align_val_t{64});
}

PROMISE(containers_live_and_die) {
    std::unordered_map<std::string, std::vector<int>> table;
    for (int i = 0; i < 20000; i++) {
        table[std::to_string(i % 997) + std::string(i % 41, 'x')].push_back(i);
        if (i % 3 == 0) table.erase(std::to_string(i % 499));
    }
    long sum = 0;
    for (auto &[key, values] : table)
        for (int value : values) sum += value + (long)key.size();
    HOLDS(sum > 0);
}
