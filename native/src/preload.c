/* preload.c: the malloc family under its own names, for LD_PRELOAD. Includes the library and forwards; binds a
 * program's calls of malloc and free. */

#include "hakmem.c"

#include <dlfcn.h>
#include <link.h>
#pragma weak dladdr
#pragma weak dlclose
#pragma weak dlopen
#pragma weak dlsym

#define EXPORT __attribute__((visibility("default")))

EXPORT HIT void *malloc(size_t size) { return allocate(size); }
EXPORT HIT void free(void *block) { release(block); }
EXPORT void *calloc(size_t count, size_t size) { return hak_calloc(count, size); }
EXPORT void *realloc(void *block, size_t size) { return hak_realloc(block, size); }
EXPORT void *aligned_alloc(size_t alignment, size_t size) { return hak_aligned_alloc(alignment, size); }
EXPORT void *memalign(size_t alignment, size_t size) { return hak_aligned_alloc(alignment, size); }
EXPORT int posix_memalign(void **block, size_t alignment, size_t size)
{
    return hak_posix_memalign(block, alignment, size);
}
EXPORT size_t malloc_usable_size(void *block) { return hak_usable_size(block); }
EXPORT int malloc_trim(size_t keep) { return (void)keep, hak_purge() != 0; }
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

/* --- early binding ------------------------------------------------------------------------------------------------ */

/* A program linked without -z now reaches malloc and free by way of the dynamic linker until each was called once. On
 * some processors (AMD, family 26) that detour slows the later calls for the life of the process, as if the branch
 * predictor kept both targets of the jump. So these two are bound before the program begins, as the linker itself would
 * bind them. */

#ifdef __aarch64__
#define RELOCATION_OF_CALL R_AARCH64_JUMP_SLOT
#else
#define RELOCATION_OF_CALL R_X86_64_JUMP_SLOT
#endif

struct calls {
    void *malloc, *free; /* as the program finds them */
};

static void bind_call(void **slot, const char *name, const struct calls *calls)
{
    if (strcmp(name, "malloc") == 0) *slot = calls->malloc;
    if (strcmp(name, "free") == 0) *slot = calls->free;
}

/* Leaves alone what the linker has bound (its slots may be read-only) and what it has not relocated (the vDSO). */
static int bind_object(struct dl_phdr_info *object, size_t bytes, void *calls)
{
    (void)bytes;
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
        bind_call((void **)(object->dlpi_addr + slots[i].r_offset), name, calls);
    }
    return 0;
}

static bool is_ours(void *function)
{
    Dl_info there, here;
    return dladdr(function, &there) != 0 && dladdr((void *)is_ours, &here) != 0 && there.dli_fbase == here.dli_fbase;
}

/* Another library may come first, or this one late: then the program's calls are not ours. */
__attribute__((constructor)) static void bind_early(void)
{
    void *program = dlopen != NULL ? dlopen(NULL, RTLD_LAZY) : NULL;
    if (program == NULL) return;
    struct calls calls = {dlsym(program, "malloc"), dlsym(program, "free")};
    if (is_ours(calls.malloc) && is_ours(calls.free)) dl_iterate_phdr(bind_object, &calls);
    dlclose(program);
}
