/* preload.c: the malloc family under its own names, for LD_PRELOAD. Includes the library and forwards to it. Also binds
 * the program's calls of malloc and free, and of C++'s operators new and delete, before the program begins, and keeps
 * the libraries that it opens from preferring libc's. */

#include "hakmem.c"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#pragma weak dladdr
#pragma weak dlclose
#pragma weak dlsym

#define EXPORT __attribute__((visibility("default")))

EXPORT HIT void *malloc(size_t size) { return allocate(size); }
EXPORT HIT void free(void *block) { release(block); }
EXPORT void *calloc(size_t count, size_t size) { return hak_calloc(count, size); }
EXPORT void *realloc(void *block, size_t size) { return hak_realloc(block, size); }
EXPORT void *aligned_alloc(size_t alignment, size_t size) { return hak_aligned_alloc(alignment, size); }
EXPORT void *memalign(size_t alignment, size_t size) /* as glibc's: at the next power of two, if there is one */
{
    if (!is_power_of_two(alignment)) alignment = alignment != 0 ? (size_t)2 << log2_floor(alignment) : 1;
    return hak_aligned_alloc(alignment, size);
}
EXPORT int posix_memalign(void **block, size_t alignment, size_t size)
{
    return hak_posix_memalign(block, alignment, size);
}
EXPORT size_t malloc_usable_size(void *block) { return hak_usable_size(block); }
EXPORT int malloc_trim(size_t keep)
{
    int (*trim_of_libc)(size_t) = mode == MODE_LIBC && dlsym != NULL ? dlsym(RTLD_NEXT, "malloc_trim") : NULL;
    return trim_of_libc != NULL ? trim_of_libc(keep) : hak_purge() != 0;
}
EXPORT void cfree(void *block) { release(block); }
EXPORT void free_sized(void *block, size_t size) { (void)size, release(block); }
EXPORT void free_aligned_sized(void *block, size_t alignment, size_t size)
{
    (void)alignment, (void)size, release(block);
}

EXPORT void *reallocarray(void *block, size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total)) return refuse();
    return hak_realloc(block, total);
}

EXPORT void *valloc(size_t size) { return hak_aligned_alloc((size_t)sysconf(_SC_PAGESIZE), size); }

EXPORT void *pvalloc(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size > PTRDIFF_MAX - page) return refuse();
    return hak_aligned_alloc(page, align_up(size_max(size, 1), page));
}

/* --- libraries that are opened ------------------------------------------------------------------------------------ */

static void *(*dlopen_of_libc)(const char *file, int flags);

/* A library that is opened to prefer the symbols of its own dependencies, as php's modules are, would find libc's free
 * before the program's, and pass it what strdup or the program took from this heap. So it does not prefer them. The
 * call is a tail call: by its return address libc knows the caller, and in which folders to look. */
EXPORT void *dlopen(const char *file, int flags)
{
    if (dlopen_of_libc == NULL) dlopen_of_libc = dlsym(RTLD_NEXT, "dlopen");
    return dlopen_of_libc(file, flags & ~RTLD_DEEPBIND);
}

/* --- early binding ------------------------------------------------------------------------------------------------ */

/* In a program linked without -z now, the first call each of malloc and free goes through the dynamic linker. On some
 * processors (AMD, family 26) that detour slows the later calls for the life of the process, as if the branch predictor
 * kept both targets of the jump. So these two are bound before the program begins, as the linker itself would bind
 * them. C++'s operators new and delete, where they are the C++ library's own and so only call malloc and free, are
 * bound to functions here that are as short as these. They are not exported, because a program, or a library of it, may
 * define its own. */

#ifdef __aarch64__
#define RELOCATION_OF_CALL R_AARCH64_JUMP_SLOT
#else
#define RELOCATION_OF_CALL R_X86_64_JUMP_SLOT
#endif

/* operator new as the program finds it; NULL in a program without C++. When memory ends, the C++ library's own calls
 * the new_handler and throws. */
extern void *operator_new(size_t size) __asm__("_Znwm") __attribute__((weak, visibility("default")));

static NOINLINE void *new_missed(size_t size)
{
    void *block = allocate(size);
    return LIKELY(block != NULL) ? block : operator_new(size);
}

/* The miss is a tail call, so its return address, which is the call site, lies in the program. */
static HIT void *new_here(size_t size)
{
    if (UNLIKELY(size >= front.tiny_end)) return new_missed(size);
    uintptr_t block;
    return LIKELY(bin_pop(bin_of_size(size), &block)) ? (void *)block : new_missed(size);
}

extern void *operator_new_aligned(size_t size, size_t alignment) __asm__("_ZnwmSt11align_val_t")
    __attribute__((weak, visibility("default")));

static HIT void *new_aligned_here(size_t size, size_t alignment)
{
    uintptr_t block;
    bool hit = is_power_of_two(alignment) && tiny_pop_aligned(alignment, size, &block);
    return LIKELY(hit) ? (void *)block : operator_new_aligned(size, alignment);
}

enum { CALLS_OF_C = 2 };

static struct call {
    const char *name;
    void *here; /* NULL: calls are left as they are */
} calls[] = {{"malloc", malloc},
             {"free", free},
             {"_Znwm", new_here},
             {"_Znam", new_here},
             {"_ZdlPv", free},
             {"_ZdlPvm", free},
             {"_ZdaPv", free},
             {"_ZdaPvm", free},
             {"_ZnwmSt11align_val_t", new_aligned_here},
             {"_ZnamSt11align_val_t", new_aligned_here},
             {"_ZdlPvSt11align_val_t", free},
             {"_ZdlPvmSt11align_val_t", free},
             {"_ZdaPvSt11align_val_t", free},
             {"_ZdaPvmSt11align_val_t", free}};

/* Binds the calls of one object to the functions in `calls`. Leaves alone an object that the linker has bound (its
 * slots may be read-only) or has not relocated (the vDSO). */
static int bind_object(struct dl_phdr_info *object, size_t bytes, void *unused)
{
    (void)bytes, (void)unused;
    uintptr_t table[DT_NUM] = {0};
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_DYNAMIC || !(segment->p_flags & PF_W)) continue;
        for (const ElfW(Dyn) *entry = (void *)(object->dlpi_addr + segment->p_vaddr); entry->d_tag != DT_NULL;
             entry++) {
            if (entry->d_tag < DT_NUM) table[entry->d_tag] = entry->d_un.d_val;
            if (entry->d_tag == DT_FLAGS_1 && (entry->d_un.d_val & DF_1_NOW)) return 0;
        }
    }
    if (table[DT_JMPREL] == 0 || table[DT_BIND_NOW] != 0 || (table[DT_FLAGS] & DF_BIND_NOW)) return 0;
    const ElfW(Rela) *slots = (void *)table[DT_JMPREL];
    const ElfW(Sym) *symbols = (void *)table[DT_SYMTAB];
    for (size_t i = 0; i < table[DT_PLTRELSZ] / sizeof(*slots); i++) {
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(slots[i].r_info)];
        if (ELF64_R_TYPE(slots[i].r_info) != RELOCATION_OF_CALL || symbol->st_shndx != SHN_UNDEF) continue;
        const char *name = (const char *)table[DT_STRTAB] + symbol->st_name;
        for (const struct call *call = calls; call < calls + COUNT(calls); call++)
            if (call->here != NULL && strcmp(name, call->name) == 0)
                *(void **)(object->dlpi_addr + slots[i].r_offset) = call->here;
    }
    return 0;
}

static bool is_ours(void *function)
{
    Dl_info there, here;
    return dladdr(function, &there) != 0 && dladdr((void *)is_ours, &here) != 0 && there.dli_fbase == here.dli_fbase;
}

/* The segment in which operator new lies, and whether that is part of a C++ library. */
struct cxx {
    uintptr_t begin, end;
    bool plain;
};

static int cxx_find(struct dl_phdr_info *object, size_t bytes, void *found)
{
    static const char *const libraries[] = {"libstdc++.so", "libc++.so", "libc++abi.so"};
    (void)bytes;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        struct cxx *cxx = found;
        cxx->begin = object->dlpi_addr + segment->p_vaddr;
        cxx->end = cxx->begin + segment->p_memsz;
        if (segment->p_type != PT_LOAD || (uintptr_t)operator_new - cxx->begin >= segment->p_memsz) continue;
        const char *slash = strrchr(object->dlpi_name, '/'), *file = slash != NULL ? slash + 1 : object->dlpi_name;
        for (int j = 0; j < COUNT(libraries); j++) cxx->plain |= strncmp(file, libraries[j], strlen(libraries[j])) == 0;
        return 1;
    }
    return 0;
}

/* Are all of the program's operators those of one C++ library? An older one lacks the aligned ones. It is looked up
 * among the loaded objects rather than opened: to open it before libc itself has begun would begin it, without an
 * environment. */
static bool operators_are_plain(void *program)
{
    struct cxx cxx = {.plain = false};
    if (operator_new == NULL || dl_iterate_phdr(cxx_find, &cxx) == 0) return false;
    for (int i = CALLS_OF_C; i < COUNT(calls); i++) {
        uintptr_t found = (uintptr_t)dlsym(program, calls[i].name);
        cxx.plain &= found == 0 || found - cxx.begin < cxx.end - cxx.begin;
    }
    return cxx.plain;
}

/* Binds nothing where another library's malloc comes first, or this library was loaded late: then the program's calls
 * are not ours. */
__attribute__((constructor)) static void bind_early(void)
{
    void *program = dlsym != NULL ? dlopen(NULL, RTLD_LAZY) : NULL;
    if (program == NULL) return;
    if (is_ours(dlsym(program, "malloc")) && is_ours(dlsym(program, "free"))) {
        if (!operators_are_plain(program))
            for (int i = CALLS_OF_C; i < COUNT(calls); i++) calls[i].here = NULL;
        dl_iterate_phdr(bind_object, NULL);
    }
    dlclose(program);
}
