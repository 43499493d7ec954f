/* preload.c: the malloc family under its own names, for LD_PRELOAD. Includes the library and forwards; binds a
 * program's calls of malloc and free, new and delete. */

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

#include "operators.c"

/* --- early binding ------------------------------------------------------------------------------------------------ */

/* A program linked without -z now reaches a function by way of the dynamic linker until it was called once. On some
 * processors (AMD, family 26) that detour slows the later calls for the life of the process, as if the branch predictor
 * kept both targets of the jump. So these are bound before the program begins, as the linker itself would bind them. */

#ifdef __aarch64__
#define RELOCATION_OF_CALL R_AARCH64_JUMP_SLOT
#else
#define RELOCATION_OF_CALL R_X86_64_JUMP_SLOT
#endif

static const char *const bound[] = {"malloc", "free", "_Znwm", "_ZdlPv", "_ZdlPvm"}; /* the first two, or none */

/* Leaves alone what the linker has bound (its slots may be read-only) and what it has not relocated (the vDSO). */
static int bind_object(struct dl_phdr_info *object, size_t bytes, void *found)
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
        for (int j = 0; j < COUNT(bound); j++) {
            void *function = ((void **)found)[j];
            if (function != NULL && strcmp(name, bound[j]) == 0)
                *(void **)(object->dlpi_addr + slots[i].r_offset) = function;
        }
    }
    return 0;
}

/* Another library may come first, or this one late: then no call is ours; nor is one of a replaced operator. */
__attribute__((constructor)) static void bind_early(void)
{
    void *program = dlopen != NULL ? dlopen(NULL, RTLD_LAZY) : NULL;
    if (program == NULL) return;
    void *found[COUNT(bound)];
    for (int j = 0; j < COUNT(bound); j++) {
        found[j] = dlsym(program, bound[j]);
        if (!is_ours(found[j])) found[j] = NULL;
    }
    if (found[0] != NULL && found[1] != NULL) dl_iterate_phdr(bind_object, found);
    dlclose(program);
}
